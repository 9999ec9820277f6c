// The page: the feed drives the figures, the form fires bursts.
import {ask, follow, Model} from './feed.js'
import {byStage, cell, drawCurve, drawExpress, drawRows, drawStages, rank, state, text, Tiles} from './figures.js'
import {Waterfall} from './waterfall.js'

const $ = id => document.getElementById(id)
const model = new Model()
const waterfall = new Waterfall($('bars'), model)
const tiles = new Tiles($('tiles'), $('census'))
const calm = matchMedia('(prefers-reduced-motion: reduce)')

// Drawing. A frame draws the bars, while any grows; what is to be read changes twice a second.

let dirty = true
let asked = false
let readAt = 0

function redraw() {
  dirty = true
  animate()
}

function animate() {
  if (asked) return
  asked = true
  if (calm.matches) setTimeout(frame, 500)
  else requestAnimationFrame(frame)
}

function frame() {
  asked = false
  const running = model.running
  if (!dirty && running && waterfall.grow()) {
    later(running)
    return
  }
  if (dirty) {
    dirty = false
    waterfall.arrange()
    $('pick').max = Math.max(0, waterfall.shown.length - 1)
    if (waterfall.picked >= 0) $('pick').value = waterfall.picked
  }
  waterfall.draw()
  later(running)
}

// later does what a frame is followed by: what is to be read, if it is time for it, and the next frame.
function later(running) {
  const now = performance.now()
  if (now - readAt >= 500) {
    readAt = now
    drawText(running)
  } else if (!running) setTimeout(redraw, 500)
  if (running) animate()
}

function drawText(running) {
  const ended = [...model.starts.values()].filter(start => start.current < 0)
  const answered = ended.filter(start => start.state === 'answered' || start.state === 'ready')
  drawNode()
  drawCount(running, ended.length, ended.length - answered.length)
  const took = answered.map(start => start.sum).sort((a, b) => a - b)
  drawCurve($('curve'), took)
  for (const [id, q] of [['q50', 0.5], ['q90', 0.9], ['q99', 0.99], ['q100', 1]]) $(id).textContent = text(rank(took, q))
  drawStages($('stage-rows'), model.stages, [...model.starts.values()].filter(start => !['failed', 'refused'].includes(start.state)))
  if ($('astable').open) drawRows($('rows'), model, waterfall.shown)
  drawPicked()
}

function drawNode() {
  const parts = []
  for (const node of model.nodes) {
    const words = [node.name === 'local' ? '' : node.name, node.driver === 'sim' ? 'simulated times' : node.driver]
    if (node.draining) words.push('draining')
    if (node.waiting) words.push(`${node.waiting} wait for a VF or memory`)
    if (node.why) words.push(`does not answer: ${node.why}`)
    parts.push(words.filter(Boolean).join(', '))
  }
  $('node').textContent = [parts.join(' · '), model.version === 'unknown' ? '' : model.version].filter(Boolean).join(' · ')
}

function drawCount(running, ended, bad) {
  const parts = []
  if (running) parts.push(`${running} under way`)
  if (ended > bad) parts.push(`${ended - bad} done`)
  if (bad) parts.push(`${bad} failed or refused`)
  if (model.waiting) parts.push(`${model.waiting} wait for room`)
  $('count').textContent = parts.join(', ')
  const none = model.starts.size === 0
  $('empty').hidden = !none
  $('bars').hidden = none
  $('pick').disabled = none
}

// Picking a bar, by the mouse or by the range input that stands for the bars where there is none. A click keeps it picked.

let kept = false

function pick(place) {
  if (waterfall.picked === place) return
  waterfall.picked = place
  if (place >= 0) $('pick').value = place
  drawPicked()
  redraw()
}

function drawPicked() {
  const start = waterfall.shown[waterfall.picked]
  if (!start) {
    $('picked-title').textContent = 'Point at a bar, or go from bar to bar with the arrow keys.'
    $('picked-stages').replaceChildren()
    return
  }
  const words = `${waterfall.describe(start)}, ${state(model, start)}`
  $('picked-title').textContent = words
  const spent = [...byStage(start)].sort(([a], [b]) => a - b)
  $('picked-stages').replaceChildren(...spent.map(([place, ms]) => {
    const item = cell('li', `${model.stages[place]} `)
    item.prepend(cell('i', '', 'swatch s' + place))
    item.append(cell('b', text(ms)))
    return item
  }))
  $('pick').setAttribute('aria-valuetext', `${words}. ${spent.map(([place, ms]) => `${model.stages[place]} ${text(ms)}`).join(', ')}`)
}

$('bars').addEventListener('pointermove', event => kept || pick(waterfall.at(event.offsetX, event.offsetY)))
$('bars').addEventListener('pointerleave', () => kept || pick(-1))
$('bars').addEventListener('click', event => {
  const place = waterfall.at(event.offsetX, event.offsetY)
  kept = place >= 0 && !(kept && place === waterfall.picked)
  pick(place)
})
$('pick').addEventListener('keydown', event => { // down the page is up the range
  const by = {ArrowDown: 1, ArrowUp: -1}[event.key]
  if (!by) return
  event.preventDefault()
  event.target.value = +event.target.value + by
  pick(+event.target.value)
})
$('pick').addEventListener('input', event => pick(+event.target.value))
$('pick').addEventListener('focus', event => pick(+event.target.value))
$('pick').addEventListener('blur', () => kept || pick(-1))
for (const order of ['newest', 'slowest']) $(order).addEventListener('change', () => {
  waterfall.order = order
  readAt = 0
  redraw()
})
$('clear').addEventListener('click', () => {
  model.clear()
  readAt = 0
  redraw()
})
$('astable').addEventListener('toggle', () => {
  readAt = 0
  redraw()
})
new ResizeObserver(redraw).observe($('waterfall'))
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  waterfall.theme()
  redraw()
})

// The feed, for as long as the page is open. The key is the page's own where everybody has it, else the one that was entered here.

const given = document.querySelector('meta[name=fastiov-key]').content
let key = given || sessionStorage.getItem('key') || ''

function link(words, connected) {
  $('link').textContent = words
  $('link').dataset.state = connected ? 'on' : 'off'
}

function say(words, bad) {
  $('message').textContent = words
  $('message').classList.toggle('bad', Boolean(bad))
}

function signIn(show) {
  $('sign').hidden = !show
  $('figures').hidden = $('burst').hidden = show
  if (show) $('key').focus()
}

async function read() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 10)) {
    try {
      await follow(key, update => {
        if (update.hello) {
          signIn(false)
          link('live', true)
          readAt = 0
          wait = 1
        }
        model.take(update)
        if (update.vfs || update.hello) tiles.draw(model)
        if (update.express || update.hello) drawExpress($('express-rows'), model)
        redraw()
      })
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        link('signed out')
        sessionStorage.removeItem('key')
        say(error.message, true)
        signIn(true)
        return
      }
      link(error.status ? error.message : 'no connection, trying again')
    }
    await new Promise(resolve => setTimeout(resolve, 1000 * wait))
  }
}

$('sign').addEventListener('submit', event => {
  event.preventDefault()
  key = $('key').value.trim()
  sessionStorage.setItem('key', key)
  $('key').value = ''
  say('')
  read()
})

$('burst').addEventListener('submit', async event => {
  event.preventDefault()
  const button = $('burst').querySelector('button')
  const n = +$('n').value
  button.disabled = true
  say(`${n} calls of functions that nobody has called before …`)
  try {
    const response = await ask('/ui/burst', key, {method: 'POST', body: JSON.stringify({n}), headers: {'Content-Type': 'application/json'}})
    const result = await response.json()
    const whys = Object.entries(result.errors ?? {}).map(([why, times]) => `${times} × ${why}`)
    const times = result.answered ? `; median ${text(result.end_to_end_ms.median)}, p99 ${text(result.end_to_end_ms.p99)}` : ''
    say([`${result.answered} of ${result.requested} answered${times}`, ...whys].join('. '), result.answered < result.requested)
  } catch (error) {
    say(`The burst: ${error.message}`, true)
  }
  button.disabled = false
})

if (key) read()
else {
  link('signed out')
  signIn(true)
}
