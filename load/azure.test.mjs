// Tests the parser with the small traces and with broken ones: node azure.test.mjs, in a folder
// with azure.mjs and traces/.
import assert from 'assert'
import fs from 'fs'
import { parse, stages } from './azure.mjs'

const read = name => fs.readFileSync(new URL(`./traces/${name}`, import.meta.url), 'utf8')
const calls2019 = read('azure2019-calls.csv')
const beside = { durations: read('azure2019-durations.csv'), memory: read('azure2019-memory.csv') }
const calls2021 = read('azure2021.csv')

// Each function has as many calls in each minute as the file says, whichever part is read.
for (const [from, minutes] of [[0, 3], [5, 1], [1438, 5], [0, 1440]]) {
  const { calls, memory } = parse(calls2019, { ...beside, from, minutes })
  for (const line of calls2019.trim().split('\n').slice(1)) {
    const cells = line.split(',')
    for (let minute = from; minutes < 10 && minute < Math.min(1440, from + minutes); minute++) {
      const got = calls.filter(c => c.function === cells[2] && Math.floor(c.at / 60) === minute - from)
      assert.equal(got.length, Number(cells[4 + minute]), `${cells[2]} in minute ${minute}`)
    }
    assert(memory[cells[2]] >= 100)
  }
  assert.equal(calls.length, calls2019.trim().split('\n').slice(1).flatMap(l => l.split(',').slice(4 + from, 4 + from + minutes)).reduce((a, b) => a + Number(b), 0))
  assert(calls.every((c, n) => n === 0 || c.at >= calls[n - 1].at))
  assert.deepEqual(parse(calls2019, { ...beside, from, minutes }).calls, calls, 'two replays differ')
}

// The durations of many calls have the percentiles of the file.
const row = beside.durations.split('\n')[1].split(',').slice(-7).map(Number)
const ms = parse(calls2019, { ...beside, minutes: 1440 }).calls.filter(c => c.function === calls2019.split('\n')[1].split(',')[2]).map(c => c.ms).sort((a, b) => a - b)
assert(ms[0] >= row[0] && ms[ms.length - 1] <= row[6])
assert(Math.abs(ms[ms.length >> 1] - row[3]) < 0.1 * row[3], `median ${ms[ms.length >> 1]}, said ${row[3]}`)

// A call of a 2021 trace begins as long before its end as it took.
const lines = calls2021.trim().split('\n').slice(1).map(line => line.split(','))
const all = parse(calls2021, { minutes: 10 }).calls
assert.equal(all.length, lines.length)
const begins = lines.map(([, , end, duration]) => end - duration).sort((a, b) => a - b)
all.forEach((call, n) => assert(Math.abs(call.at - (begins[n] - begins[0])) < 1e-6))
assert.equal(parse(calls2021, { from: 2, minutes: 1 }).calls.length, begins.filter(b => b - begins[0] >= 120 && b - begins[0] < 180).length)

// k6 sends the n-th call when the area under its stages reaches n, which is within a tenth of a
// second of the time at which the call is due.
for (const speed of [1, 7, 60]) {
  const { calls } = parse(calls2019, { minutes: 10 })
  let [time, area, n] = [0, 0, 0]
  for (const { target, duration } of stages(calls, speed)) {
    const seconds = parseInt(duration) / 1000
    for (; n < calls.length && n + 1 <= area + target * seconds + 1e-6; n++) {
      const sent = time + (n + 1 - area) / target
      assert(Math.abs(sent - calls[n].at / speed) <= 0.1001, `call ${n} of ${calls[n].at / speed} s is sent at ${sent}`)
    }
    time += seconds
    area += target * seconds
  }
  assert.equal(n, calls.length)
  assert(area < calls.length + 1)
}

// An error names what is wrong with the trace.
for (const [trace, why] of [
  ['', /empty/], ['a,b\n1', /line 2.*fields/], ['a,b\n1,2', /neither/], ['app,func,end_timestamp,duration\na,b,x,1', /"x".*no number/],
  ['HashOwner,HashApp,HashFunction,Trigger,1\na,b,c,d,-1', /"-1"/], ['HashOwner,HashApp,HashFunction,Trigger,1\na,b,c,d,0', /no calls/]
]) assert.throws(() => parse(trace), why)
