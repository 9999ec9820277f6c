// The figures: the tail as a curve, the stages as a table, the VFs as tiles.
import {name} from './feed.js'

// rank is the q-quantile by nearest rank, a value that was seen; values are sorted.
export const rank = (values, q) => values[Math.max(0, Math.ceil(q * values.length) - 1)]

// text writes milliseconds as people read them.
export function text(ms) {
  if (ms === undefined) return '–'
  if (ms >= 10000) return (ms / 1000).toFixed(1) + ' s'
  if (ms >= 1000) return (ms / 1000).toFixed(2) + ' s'
  return (ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)) + ' ms'
}

// step is a round step that makes at most n of most.
export function step(most, n) {
  const power = 10 ** Math.floor(Math.log10(most / n))
  return [1, 2, 5, 10].map(f => f * power).find(s => s * n >= most)
}

// A tick of an axis in milliseconds that goes up to most.
export const tick = (ms, most) => most >= 2000 ? `${+(ms / 1000).toFixed(2)} s` : `${+ms.toFixed(2)} ms`

function svg(parent, tag, attributes, content) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag)
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
  if (content !== undefined) element.textContent = content
  parent.append(element)
}

// drawCurve draws latency over the share of starts that were faster; each nine is as wide as the one before, for the tail is there.
export function drawCurve(element, took) {
  const box = {left: 50, right: 384, top: 10, bottom: 124}
  const n = took.length
  const nines = Math.max(2, Math.log10(Math.max(n, 1)))
  const x = q => box.left + (box.right - box.left) * Math.min(1, -Math.log10(1 - q) / nines)
  const most = (took[n - 1] ?? 100) * 1.05
  const each = step(most, 4)
  const y = ms => box.bottom - (box.bottom - box.top) * ms / (each * Math.ceil(most / each))
  element.replaceChildren()
  for (let ms = 0; ms <= each * Math.ceil(most / each) + each / 2; ms += each) {
    svg(element, 'line', {class: 'grid', x1: box.left, x2: box.right, y1: y(ms), y2: y(ms)})
    svg(element, 'text', {x: box.left - 6, y: y(ms) + 3.5, 'text-anchor': 'end'}, tick(ms, most))
  }
  for (const [q, label] of [[0, '0'], [0.5, 'p50'], [0.9, 'p90'], [0.99, 'p99'], [0.999, 'p99.9']]) {
    if (-Math.log10(1 - q) > nines + 1e-9) continue
    svg(element, 'line', {class: 'grid', x1: x(q), x2: x(q), y1: box.top, y2: box.bottom})
    svg(element, 'text', {x: x(q), y: box.bottom + 16, 'text-anchor': q ? 'middle' : 'start'}, label)
  }
  if (!n) return
  let path = ''
  for (let i = 0; i < n; i++) path += `${i ? 'H' : 'M'}${x(i / n).toFixed(1)}${i ? '' : ' ' + y(took[0]).toFixed(1)}V${y(took[i]).toFixed(1)}`
  svg(element, 'path', {class: 'area', d: `${path}H${box.right}V${box.bottom}H${box.left}Z`})
  svg(element, 'path', {class: 'line', d: `${path}H${box.right}`})
  for (const q of [0.5, 0.9, 0.99]) if (1 / (1 - q) <= n + 1e-9) svg(element, 'circle', {cx: x(q), cy: y(rank(took, q)), r: 3.5})
}

// cell makes an element with a text.
export function cell(tag, content, className) {
  const element = document.createElement(tag)
  element.textContent = content
  if (className) element.className = className
  return element
}

// byStage is what a start has spent in each stage.
export function byStage(start) {
  const spent = new Map()
  for (let i = 0; i < start.pieces.length; i += 2) spent.set(start.pieces[i], (spent.get(start.pieces[i]) ?? 0) + start.pieces[i + 1])
  return spent
}

// drawStages fills the table of stages, which is the legend of the bars as well. A start counts for the stages that it has behind it; one that
// has ended without a stage spent no time in it.
export function drawStages(body, stages, starts) {
  const all = starts.map(start => [start, byStage(start)])
  const seen = new Set()
  for (const [start, spent] of all) {
    if (start.current >= 0) seen.add(start.current)
    for (const stage of spent.keys()) seen.add(stage)
  }
  const total = starts.reduce((sum, start) => sum + start.sum, 0)
  const rows = []
  stages.forEach((stage, place) => {
    if (!seen.has(place)) return
    const values = []
    for (const [start, spent] of all) if (start.current < 0 || spent.has(place) && start.current !== place) values.push(spent.get(place) ?? 0)
    values.sort((a, b) => a - b)
    const share = total ? values.reduce((a, b) => a + b, 0) / total : 0
    const row = document.createElement('tr')
    const head = cell('th', stage)
    head.scope = 'row'
    head.prepend(cell('i', '', 'swatch s' + place))
    const known = values.length > 0
    row.append(head, cell('td', known ? rank(values, 0.5).toFixed(1) : '–', 'number'), cell('td', known ? rank(values, 0.99).toFixed(1) : '–', 'number'),
      cell('td', known ? (100 * share).toFixed(share < 0.1 ? 1 : 0) + ' %' : '–', 'number'))
    const bar = document.createElement('meter')
    bar.max = 1
    bar.value = share
    bar.ariaHidden = 'true'
    row.lastChild.append(bar)
    rows.push(row)
  })
  body.replaceChildren(...rows)
}

// drawRows fills the table of starts.
export function drawRows(body, model, starts) {
  body.replaceChildren(...starts.map(start => {
    const row = document.createElement('tr')
    let most = [-1, 0]
    for (const entry of byStage(start)) if (entry[1] > most[1]) most = entry
    row.append(cell('td', start.action || '–'), cell('td', start.id), cell('td', start.vf || '–'), cell('td', state(model, start)),
      cell('td', model.took(start).toFixed(1), 'number'), cell('td', most[0] < 0 ? '–' : `${model.stages[most[0]]}, ${text(most[1])}`))
    return row
  }))
}

// state says in words where a start is.
export function state(model, start) {
  const where = start.current >= 0 ? `in ${model.stages[start.current]}` : start.state
  return start.why ? `${where}: ${start.why}` : where
}

// drawExpress shows the express paths of the nodes' bridges, as rows.
export function drawExpress(rows, model) {
  rows.closest('section').hidden = model.express.length === 0
  rows.replaceChildren(...model.express.map(told => {
    const row = document.createElement('tr')
    const why = told.why ? `${told.by}; now: ${told.why}` : told.by
    row.append(cell('td', model.nodes[told.node]?.name ?? ''), cell('td', told.express.toLocaleString('en'), 'number'),
      cell('td', told.regular.toLocaleString('en'), 'number'), cell('td', why))
    return row
  }))
}

// One letter for each state, for colours alone tell not everybody.
const letters = {unbound: 'u', preparing: 'p', idle: '', leased: '●', resetting: '↻', quarantined: '✕', gone: '–'}

// Tiles are the VFs, one element each, changed only where a VF has changed.
export class Tiles {
  constructor(list, census) {
    Object.assign(this, {list, census, tiles: new Map()})
  }

  draw(model) {
    const many = model.vfs.size > 24
    if (this.list.classList.toggle('many', many) !== this.many) for (const tile of this.tiles.values()) tile.vf = undefined
    this.many = many
    const count = new Map()
    const owners = new Map()
    for (const start of model.starts.values()) owners.set(start.id, start)
    for (const [key, tile] of this.tiles) if (!model.vfs.has(key)) {
      tile.element.remove()
      this.tiles.delete(key)
    }
    for (const [key, vf] of model.vfs) {
      count.set(vf.state, (count.get(vf.state) ?? 0) + 1)
      let tile = this.tiles.get(key)
      if (!tile) {
        const element = document.createElement('li')
        element.append(cell('span', vf.bdf.replace(/^0000:/, '')), cell('b', ''))
        this.list.append(element)
        this.tiles.set(key, tile = {element})
      }
      if (tile.vf === vf) continue
      tile.vf = vf
      const owner = vf.owner && owners.get(vf.owner)
      const words = `${vf.bdf} ${vf.state}${vf.owner ? ` by ${owner ? name(owner) : vf.owner}` : ''}`
      tile.element.className = vf.state
      tile.element.title = words
      tile.element.ariaLabel = words
      tile.element.lastChild.textContent = many ? letters[vf.state] ?? '?' : vf.state
    }
    const parts = [...count].sort().map(([state, n]) => `${n} ${state}`)
    const simulated = model.nodes.length > 0 && model.nodes.every(node => node.driver === 'sim')
    this.census.textContent = parts.join(', ') || (simulated ? 'none: the sandboxes are simulated' : 'none')
  }
}
