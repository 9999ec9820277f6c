// The feed, and what is known by it.

// A Model is what the feed has told so far: nodes, VFs, and the cold starts by number.
export class Model {
  constructor() {
    this.cleared = -Infinity // what began before and has ended is not wanted
    this.reset()
  }

  reset() {
    this.stages = []
    this.namespace = ''
    this.keep = 256
    this.nodes = []
    this.waiting = 0
    this.express = []
    this.vfs = new Map()
    this.starts = new Map()
    this.ahead = -Infinity // of the node's clock over ours; the update that was least under way says it best
  }

  // now is the node's time.
  get now() { return performance.now() + this.ahead }

  // take takes in an update; it returns the VFs that it told of.
  take(update) {
    this.ahead = Math.max(this.ahead, update.t - performance.now())
    if (update.hello) {
      const ahead = this.ahead
      this.reset()
      Object.assign(this, update.hello, {ahead})
    }
    if (update.nodes) this.nodes = update.nodes
    if (update.express) this.express = update.express
    if (update.waiting !== undefined) this.waiting = update.waiting
    for (const vf of update.vfs ?? []) {
      const name = vf.node + ' ' + vf.bdf
      if (vf.state) this.vfs.set(name, vf)
      else this.vfs.delete(name)
    }
    for (const told of update.starts ?? []) this.start(told)
    this.forget()
  }

  start(told) {
    let start = this.starts.get(told.n)
    if (!start || told.id) { // told with the id, it is a new one: another agent counts from 1 again
      if (told.c === -1 && told.begin < this.cleared) return
      start = {number: told.n, id: told.id, action: told.action ?? '', begin: told.begin, vf: '', state: '', why: '', pieces: [], sum: 0, current: -1}
      this.starts.set(told.n, start)
    }
    start.vf = told.vf ?? start.vf
    start.state = told.state ?? start.state
    start.why = told.why ?? ''
    start.current = told.c ?? start.current
    start.pieces.splice(2 * told.k, Infinity, ...(told.s ?? []))
    start.sum = 0
    for (let i = 1; i < start.pieces.length; i += 2) start.sum += start.pieces[i]
  }

  // forget drops the oldest starts that have ended, as the node does.
  forget() {
    let extra = this.starts.size - this.keep * Math.max(1, this.nodes.length) - this.running
    if (extra <= 0) return
    for (const [number, start] of this.starts) {
      if (extra <= 0) return
      if (start.current < 0 && this.starts.delete(number)) extra--
    }
  }

  // clear drops those that have ended.
  clear() {
    this.cleared = this.now
    for (const [number, start] of this.starts) if (start.current < 0) this.starts.delete(number)
  }

  get running() {
    let n = 0
    for (const start of this.starts.values()) if (start.current >= 0) n++
    return n
  }

  // took is how long a start has taken, up to now if it is under way.
  took(start, now = this.now) { return start.current < 0 ? start.sum : Math.max(start.sum, now - start.begin) }
}

// name is what people call a start by.
export const name = start => start.action || start.id

export const authorization = key => 'Basic ' + btoa(String.fromCharCode(...new TextEncoder().encode(key)))

// A Refusal is an answer that is none: status and reason.
export class Refusal extends Error {
  constructor(status, why) {
    super(why)
    this.status = status
  }
}

// ask makes a request that carries the key, and nothing else by which the browser might know us.
export async function ask(path, key, options = {}) {
  const response = await fetch(path, {...options, headers: {Authorization: authorization(key), ...options.headers}, credentials: 'omit', cache: 'no-store'})
  if (response.ok) return response
  const said = await response.json().catch(() => ({}))
  throw new Refusal(response.status, said.error ?? response.statusText)
}

// A feed that says nothing for so long is lost: where there is no news, it sends an empty event each 15 s.
const lost = 40_000

// follow reads the feed until it ends or is lost, calling take with every update. The browser's own EventSource can send no key.
export async function follow(key, take, patience = lost) {
  const hangUp = new AbortController()
  let silence
  const heard = () => {
    clearTimeout(silence)
    silence = setTimeout(() => hangUp.abort(), patience)
  }
  try {
    heard()
    const response = await ask('/ui/feed', key, {signal: hangUp.signal})
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
    for (let rest = ''; ;) {
      heard()
      const {value, done} = await reader.read()
      if (done) return
      const events = (rest + value).split('\n\n')
      rest = events.pop()
      for (const event of events) if (event.startsWith('data: ')) take(JSON.parse(event.slice(6)))
    }
  } finally {
    clearTimeout(silence)
  }
}
