// The waterfall: one bar per cold start, on one canvas, from the moment its call came in.
import {name} from './feed.js'
import {step, text, tick} from './figures.js'

const most = 200 // bars
const axis = 22 // pixels above the bars
const names = 132 // pixels left of them, where they are high enough for a name

export class Waterfall {
  constructor(canvas, model) {
    Object.assign(this, {canvas, model, order: 'newest', shown: [], picked: -1, until: 0})
    this.context = canvas.getContext('2d')
    this.theme()
  }

  // theme reads the colours that the style sheet has for the stages.
  theme() {
    const style = getComputedStyle(this.canvas)
    const colour = property => style.getPropertyValue(property).trim()
    this.colours = []
    for (let own; (own = colour('--s' + this.colours.length)); ) this.colours.push(own)
    this.text = colour('--text')
    this.soft = colour('--soft')
    this.line = colour('--line')
    this.bad = colour('--bad')
    this.font = style.fontFamily
  }

  // arrange chooses and sorts what is shown.
  arrange() {
    const now = this.model.now
    const kept = this.shown[this.picked]?.number
    const all = [...this.model.starts.values()].sort((a, b) => b.begin - a.begin || b.number - a.number).slice(0, most)
    if (this.order === 'slowest') all.sort((a, b) => this.model.took(b, now) - this.model.took(a, now))
    this.shown = all
    this.picked = kept ? all.findIndex(start => start.number === kept) : -1
  }

  // scale is how many milliseconds the axis has. It grows in steps, so that bars grow and the axis seldom does.
  scale(now) {
    let longest = 1
    for (const start of this.shown) longest = Math.max(longest, this.model.took(start, now))
    if (longest > this.until || longest < this.until / 2.5) {
      const half = step(longest * 1.02, 6) / 2
      this.until = half * Math.ceil(longest * 1.02 / half)
    }
    return this.until
  }

  // grow lengthens the bars that are under way; it tells whether that is all there was to do since draw.
  grow() {
    const {context, model, left, perMs, row, thick} = this
    const now = model.now
    if (this.picked >= 0 || this.scale(now) !== this.drawn || this.canvas.clientWidth !== this.wide) return false
    for (let i = 0; i < this.shown.length; i++) {
      const start = this.shown[i]
      if (start.current < 0) continue
      const end = left + model.took(start, now) * perMs
      context.fillStyle = this.colours[start.current]
      const from = Math.max(start.drawnFrom, start.drawnTo - 1) // over the soft edge of the last time
      context.fillRect(from, axis + i * row, end - from, thick)
      context.fillStyle = this.text
      context.fillRect(end, axis + i * row, 1.5, thick)
      start.drawnTo = end
    }
    return true
  }

  draw() {
    const {canvas, context, model, shown} = this
    const now = model.now
    const wide = canvas.clientWidth
    const row = Math.max(3, Math.min(18, Math.floor(620 / Math.max(shown.length, 1))))
    const high = axis + Math.max(row * shown.length, 60) + 4
    const ratio = devicePixelRatio || 1
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.style.height = high + 'px'
      canvas.width = Math.round(wide * ratio)
      canvas.height = Math.round(high * ratio)
    }
    const named = row >= 12 && wide > 480
    const left = named ? names : 4
    const scale = this.scale(now)
    const perMs = (wide - left - 10) / scale
    const thick = row > 6 ? row - 2 : row > 4 ? row - 1 : row // many make one picture
    Object.assign(this, {row, left, perMs, thick, wide, drawn: scale})
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.clearRect(0, 0, wide, high)
    this.drawAxis(left, perMs, scale, high)
    for (let i = 0; i < shown.length; i++) this.drawBar(shown[i], left, axis + i * row, thick, perMs, now)
    if (named) this.drawNames(row)
    if (this.picked >= 0) {
      context.strokeStyle = this.text
      context.lineWidth = 1.5
      context.strokeRect(left - 2, axis + this.picked * row - 1.5, this.model.took(shown[this.picked], now) * perMs + 4, thick + 3)
    }
  }

  drawAxis(left, perMs, scale, high) {
    const {context} = this
    context.font = `11px ${this.font}`
    context.textBaseline = 'alphabetic'
    context.textAlign = 'center'
    context.fillStyle = this.soft
    const each = step(scale, 6)
    for (let ms = 0; ms <= scale * 1.0001; ms += each) {
      const x = Math.round(left + ms * perMs)
      context.textAlign = ms === 0 ? 'left' : ms > scale * 0.97 ? 'right' : 'center'
      context.fillStyle = this.soft
      context.fillText(tick(ms, scale), x, 12)
      context.fillStyle = this.line
      context.fillRect(x, axis - 5, 1, high - axis + 5)
    }
  }

  drawBar(start, left, y, thick, perMs, now) {
    const {context, colours} = this
    const {pieces} = start
    let x = left
    for (let i = 0; i < pieces.length; i += 2) {
      const width = pieces[i + 1] * perMs
      context.fillStyle = colours[pieces[i]]
      context.fillRect(x, y, width, thick)
      x += width
    }
    if (start.current >= 0) {
      const end = left + this.model.took(start, now) * perMs
      context.fillStyle = colours[start.current]
      context.fillRect(x, y, end - x, thick)
      context.fillStyle = this.text // under way
      context.fillRect(end, y, 1.5, thick)
      Object.assign(start, {drawnFrom: x, drawnTo: end})
    } else if (start.state === 'failed' || start.state === 'refused') {
      context.fillStyle = this.bad
      context.fillRect(x + 2, y, Math.max(3, thick), thick)
    }
  }

  drawNames(row) {
    const {context} = this
    context.font = `12px ${this.font}`
    context.textAlign = 'right'
    context.textBaseline = 'middle'
    context.fillStyle = this.text
    this.shown.forEach((start, i) => {
      let words = name(start)
      if (words.length > 18) words = words.slice(0, 17) + '…'
      context.fillText(words, names - 10, axis + i * row + row / 2, names - 14)
    })
  }

  // at is the place of the bar under a point, or -1.
  at(x, y) {
    const i = Math.floor((y - axis) / this.row)
    return y >= axis && i < this.shown.length ? i : -1
  }

  // describe says in one line what a bar is.
  describe(start) {
    return `${name(start)}, ${start.id}${start.vf ? ', VF ' + start.vf : ''}: ${text(this.model.took(start))}`
  }
}
