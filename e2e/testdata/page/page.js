// page.js looks at the live page as its users do, in a real Chromium, and prints what it measured as JSON. What is not as it should be goes to
// standard error, a line each, and makes it fail. It is told URL, KEY (empty: the page has its own), VFS, CHROMIUM, and SHOTS, a folder for pictures.
const { chromium } = require('playwright-core')
const os = require('os')
const axe = require('axe-core').source
const { URL: url, KEY: key, SHOTS: shots, CHROMIUM: executablePath } = process.env
const vfs = +process.env.VFS
const n = 200

let failed = false
function check(right, what) {
  if (right) return
  failed = true
  console.error('FAILED ' + what)
}

// watch opens a page and keeps account of what it loads, says and takes long for.
async function watch(browser, options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 1020 }, ...options })
  const page = await context.newPage()
  const seen = { bytes: 0, complaints: [] }
  const wire = await context.newCDPSession(page)
  await wire.send('Network.enable')
  const counted = new Map()
  wire.on('Network.responseReceived', e => counted.set(e.requestId, e.response.encodedDataLength))
  wire.on('Network.dataReceived', e => counted.set(e.requestId, (counted.get(e.requestId) ?? 0) + e.encodedDataLength))
  wire.on('Network.loadingFinished', e => counted.set(e.requestId, e.encodedDataLength))
  Object.defineProperty(seen, 'bytes', { get: () => [...counted.values()].reduce((a, b) => a + b, 0) })
  page.on('console', m => { if (m.type() === 'error' || m.type() === 'warning') seen.complaints.push(m.text()) })
  page.on('pageerror', e => seen.complaints.push(String(e)))
  await page.addInitScript(() => {
    window.long = []
    window.frames = []
    new PerformanceObserver(list => list.getEntries().forEach(e => window.long.push(Math.round(e.duration)))).observe({ type: 'longtask', buffered: true })
    let last = 0
    const frame = now => {
      if (last) window.frames.push(now - last)
      last = now
      requestAnimationFrame(frame)
    }
    requestAnimationFrame(frame)
  })
  await page.goto(url + '/ui')
  return { context, page, seen }
}

const live = page => page.locator('#link[data-state=on]').waitFor({ timeout: 20000 })

// accessible checks by rules what rules can check, and says which theme that was in.
async function accessible(page, where) {
  const result = await page.evaluate(`${axe}; axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'] })`)
  for (const v of result.violations) check(false, `${where}: ${v.id}: ${v.help}: ${v.nodes.map(x => `${x.target} ${x.any.map(a => a.message)}`).slice(0, 3).join('; ')}`)
}

// focused walks the page by the tab key and returns what has the focus, one by one.
async function focused(page) {
  const ids = []
  await page.evaluate(() => document.querySelector('a, button, input, summary').focus())
  ids.push(await page.evaluate(() => document.activeElement.className))
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press('Tab')
    const id = await page.evaluate(() => {
      const e = document.activeElement
      return e === document.body ? '' : e.id || e.className || e.textContent.trim()
    })
    if (!id) break
    ids.push(id)
  }
  return ids
}

async function signIn(page) {
  await page.locator('#key').waitFor()
  check(await page.locator('#figures').isHidden(), 'without a key, the page shows something')
  await page.keyboard.type('some:thing') // it has the focus
  await page.keyboard.press('Enter')
  await page.locator('#message.bad').waitFor()
  await accessible(page, 'signing in')
  await page.locator('#key').fill(key)
  await page.getByRole('button', { name: 'Sign in' }).click()
}

async function burst(browser) {
  const { context, page, seen } = await watch(browser, { colorScheme: 'dark' })
  if (key) await signIn(page)
  await live(page)
  check(!page.url().includes('?') && !page.url().includes('@'), 'the URL is ' + page.url())
  await page.locator('#tiles li').nth(vfs - 1).waitFor()
  check(await page.locator('#tiles .idle').count() === vfs, 'the VFs are not idle at first')
  const opened = seen.bytes

  const load = os.loadavg()[0] // of others: they take what the page is then short of
  await page.getByLabel('Cold starts at once').fill(String(n))
  await page.evaluate(() => { window.long.length = window.frames.length = 0 })
  await page.keyboard.press('Enter')
  await page.locator('#count', { hasText: `${n} under way` }).waitFor({ timeout: 30000 })
  await page.locator('#tiles .leased').nth(vfs - 1).waitFor()
  await page.locator('#message', { hasText: `${n} of ${n} answered` }).waitFor({ timeout: 60000 })
  const growing = await page.evaluate(() => ({ long: window.long, frames: window.frames.sort((a, b) => a - b) }))
  const all = seen.bytes
  await page.locator('#count', { hasText: `${n} done` }).waitFor()
  await page.locator('#tiles .idle').nth(vfs - 1).waitFor({ timeout: 20000 }) // their functions are deleted, so the sandboxes end
  for (const stage of ['4-vfio-dev', '1-dma-ram', '5-vf-driver', 'first-byte']) check(await page.locator('#stage-rows th', { hasText: stage }).count() === 1, 'no row for ' + stage)
  check(/ s$/.test(await page.locator('#q99').textContent()), 'p99 is ' + await page.locator('#q99').textContent())

  await byKeyboard(page)
  await pictures(page)
  await accessible(page, 'dark')
  await page.emulateMedia({ colorScheme: 'light' })
  await page.waitForTimeout(300)
  await accessible(page, 'light')
  await page.locator('#pick').fill('60')
  await page.waitForTimeout(200)
  await page.screenshot({ path: shots + '/page-light.png' })
  await page.setViewportSize({ width: 390, height: 800 })
  await page.waitForTimeout(300)
  check(await page.evaluate(() => document.documentElement.scrollWidth) <= 390, 'a narrow page scrolls sideways')
  await page.screenshot({ path: shots + '/narrow.png', fullPage: true })
  await page.getByRole('button', { name: 'Clear' }).click()
  await page.locator('#empty').waitFor()
  const expected = key ? 1 : 0 // the browser itself complains of the key that was refused
  check(seen.complaints.length === expected, 'the console says ' + JSON.stringify(seen.complaints))
  await context.close()
  const frame = q => Math.round(growing.frames[Math.floor(q * (growing.frames.length - 1))] * 10) / 10
  return {
    transferred_bytes: { page: opened, with_feed_of_burst: all }, console_errors: seen.complaints.length - expected,
    long_tasks_ms: growing.long.sort((a, b) => b - a), frame_ms: { count: growing.frames.length, median: frame(0.5), p99: frame(0.99), max: frame(1) },
    chromium: browser.version(), machine: { cpus: os.cpus().length, load_before: Math.round(load * 10) / 10 },
  }
}

// pictures takes one of a second burst, which is as far as it shows most; the first one was measured, and taking pictures takes time.
async function pictures(page) {
  await page.getByRole('button', { name: 'Burst' }).click()
  await page.locator('#count', { hasText: `${n} under way` }).waitFor({ timeout: 30000 })
  await page.waitForTimeout(5200)
  await page.screenshot({ path: shots + '/page-dark.png' })
  await page.locator('#message', { hasText: `${n} of ${n} answered` }).waitFor({ timeout: 60000 })
}

async function byKeyboard(page) {
  const order = await focused(page)
  const want = 'skip n Burst newest clear pick The same as a table'
  check(order.join(' ').startsWith(want), `the tab key goes ${order.join(' ')}, not ${want}`)
  await page.locator('#pick').focus()
  await page.keyboard.press('ArrowRight')
  const words = await page.locator('#pick').getAttribute('aria-valuetext')
  check(/page-burst-1-\d+, fn-[0-9a-f]+, VF .*: .* s, answered\. .*4-vfio-dev .* ms/.test(words), 'the second bar is told as ' + words)
  check(await page.locator('#picked-stages li').count() > 8, 'its stages are not shown')
  await page.getByText('The same as a table').focus()
  await page.keyboard.press('Enter')
  await page.locator('#rows tr').nth(n - 1).waitFor()
  check(/answered/.test(await page.locator('#rows tr').first().textContent()), 'the table does not say answered')
  await page.getByText('The same as a table').press('Enter')
  await page.getByText('Slowest first').click()
  await page.waitForTimeout(700)
  const took = async i => {
    await page.locator('#pick').fill(String(i))
    return parseFloat((await page.locator('#picked-title').textContent()).match(/: ([\d.]+) s/)[1])
  }
  check(await took(0) >= await took(n - 1), 'the slowest is not first')
  await page.getByText('Newest first').click()
}

// hostile shows a page what no node says, and what the nets between here and it may do.
async function hostile(browser) {
  const { context, page, seen } = await watch(browser, { reducedMotion: 'reduce' })
  const evil = '<img src=x onerror="window.hacked=1">'
  const update = {
    t: 1e12, hello: { version: evil, namespace: 'x', stages: ['queue', evil], keep: 4 }, nodes: [{ name: evil, driver: 'qemu', why: evil }], waiting: 2,
    vfs: [{ node: 0, bdf: evil, state: 'leased', owner: 'fn-1' }], starts: Array.from({ length: 9 }, (_, i) => (
      { n: i + 1, id: 'fn-' + i, action: evil, begin: 1e12 - 50, state: i ? 'failed' : 'starting', why: i ? evil : '', k: 0, s: [0, 10, 1, 20], c: i ? -1 : 1 })),
  }
  await page.route('**/ui/feed', route => route.fulfill({ contentType: 'text/event-stream', body: `:\n\ndata: ${JSON.stringify(update)}\n\n` }))
  await page.route('**/ui/burst', route => route.fulfill({ status: 409, contentType: 'application/json', body: JSON.stringify({ error: evil }) }))
  if (key) await page.evaluate(k => sessionStorage.setItem('key', k), key)
  await page.reload()
  await page.locator('#count', { hasText: '1 under way, 4 failed or refused' }).waitFor()
  await page.getByRole('button', { name: 'Burst' }).click()
  await page.locator('#message.bad', { hasText: 'onerror' }).waitFor()
  await page.getByText('The same as a table').click()
  await page.locator('#rows tr').nth(4).waitFor()
  check(await page.locator('#rows tr').count() === 5, 'more starts are kept than the node said it keeps')
  await page.getByRole('button', { name: 'Clear' }).click()
  await page.waitForTimeout(2500) // the feed ends at once, and comes again each second with all it had
  check(/^1 under way, 2 wait/.test(await page.locator('#count').textContent()), 'what was cleared comes back: ' + await page.locator('#count').textContent())
  check(await page.locator('img').count() === 1 && !await page.evaluate(() => window.hacked), 'the name of a function became an element')
  await context.close()
  return seen
}

async function main() {
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] }) // its own needs privileges that a container has not
  try {
    const figures = await burst(browser)
    await hostile(browser)
    const limit = 60 * 1024
    const took = figures.transferred_bytes.with_feed_of_burst
    check(took <= limit, `the page and a burst take ${took} bytes, more than ${limit}`)
    console.log(JSON.stringify(figures))
  } finally {
    await browser.close()
  }
}

main().then(() => process.exit(failed ? 1 : 0), error => {
  console.error('FAILED ' + error.stack)
  process.exit(1)
})
