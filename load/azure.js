// Reads the traces of Azure Functions that Microsoft published, in both of their forms:
//
//   2019  one line for each function: how often it was called in each of the day's 1440 minutes.
//         Two more files, if given, have percentiles of the times that its calls took, and the
//         memory that its application had.
//   2021  one line for each call: its function, when it ended and how long it took
//
// Both become a list of calls, each with the second at which it arrives, its function, and the
// milliseconds that it takes.

// parse reads the part of a trace that begins at the minute from and is so many minutes long.
export function parse (trace, { durations = '', memory = '', from = 0, minutes = 10 } = {}) {
  const rows = table(trace)
  if (!rows.length) throw new Error('the trace is empty')
  const calls = 'HashFunction' in rows[0] ? calls2019(rows, table(durations), from, minutes) : calls2021(rows, from, minutes)
  if (!calls.length) throw new Error(`the trace has no calls in the ${minutes} minutes from minute ${from}`)
  return { calls: calls.sort((a, b) => a.at - b.at), memory: memoryOf(rows, table(memory)) }
}

function table (text) {
  const [head, ...lines] = text.trim().split(/\r?\n/).map(line => line.split(','))
  return lines.map((cells, n) => {
    if (cells.length !== head.length) throw new Error(`line ${n + 2} of the trace has ${cells.length} fields, its head ${head.length}`)
    return Object.fromEntries(head.map((name, i) => [name, cells[i]]))
  })
}

function calls2019 (rows, durations, from, minutes) {
  const took = Object.fromEntries(durations.map(row => [row.HashFunction, row]))
  const calls = []
  rows.forEach((row, n) => {
    const random = generator(n + 1)
    for (let minute = from; minute < from + minutes && String(minute + 1) in row; minute++) {
      // The trace does not say when within the minute.
      for (let left = count(row[minute + 1]); left > 0; left--) {
        calls.push({ at: 60 * (minute - from + random()), function: row.HashFunction, ms: duration(took[row.HashFunction], random()) })
      }
    }
  })
  return calls
}

function calls2021 (rows, from, minutes) {
  if (!('func' in rows[0]) || !('end_timestamp' in rows[0]) || !('duration' in rows[0])) {
    throw new Error('the trace has the columns of neither the 2019 nor the 2021 form')
  }
  const calls = rows.map(row => ({ at: count(row.end_timestamp) - count(row.duration), function: row.func, ms: 1000 * count(row.duration) }))
  const begin = Math.max(0, calls.reduce((least, { at }) => Math.min(least, at), Infinity)) + 60 * from
  return calls.map(call => ({ ...call, at: call.at - begin })).filter(({ at }) => at >= 0 && at < 60 * minutes)
}

function count (text) {
  const value = Number(text)
  if (text === '' || !Number.isFinite(value) || value < 0) throw new Error(`${JSON.stringify(text)} in the trace is no number of calls or seconds`)
  return value
}

// duration returns the time below which that share of the calls stays, by the known percentiles.
function duration (row, share) {
  if (!row) return 0
  const known = [0, 1, 25, 50, 75, 99, 100].map(p => [p / 100, count(row[`percentile_Average_${p}`])])
  for (let n = 1; n < known.length; n++) {
    const [[low, least], [high, most]] = [known[n - 1], known[n]]
    if (share <= high) return least + (most - least) * (share - low) / (high - low)
  }
  return known[known.length - 1][1]
}

// memoryOf returns the memory of each function's application, in MB. The 2021 trace does not have
// it.
function memoryOf (rows, memory) {
  const had = Object.fromEntries(memory.map(row => [row.HashApp, count(row.AverageAllocatedMb)]))
  return Object.fromEntries(rows.filter(row => row.HashApp in had).map(row => [row.HashFunction, had[row.HashApp]]))
}

// generator returns a source of numbers between 0 and 1, the same ones for the same seed, so that
// two replays are the same load.
function generator (seed) {
  let state = seed * 2654435761 >>> 0
  return () => {
    state = state + 0x6d2b79f5 >>> 0
    let mixed = Math.imul(state ^ state >>> 15, 1 | state)
    mixed ^= mixed + Math.imul(mixed ^ mixed >>> 7, 61 | mixed)
    return ((mixed ^ mixed >>> 14) >>> 0) / 2 ** 32
  }
}

// stages returns the calls in the form of k6's ramping-arrival-rate: a rate for a length of time.
// Each stage is a tenth of a second long, so that calls that arrived together are sent together.
export function stages (calls, speed = 1) {
  const step = 0.1
  const counts = []
  for (const { at } of calls) {
    const n = Math.floor(at / speed / step + 1e-9)
    counts[n] = (counts[n] ?? 0) + 1
  }
  const out = []
  for (let n = 0, same; n < counts.length; n = same) {
    const rate = (counts[n] ?? 0) / step
    for (same = n + 1; same < counts.length && (counts[same] ?? 0) / step === rate;) same++
    out.push({ target: Math.round(rate), duration: '0s' }, { target: Math.round(rate), duration: `${Math.round((same - n) * step * 1000)}ms` })
  }
  // The last call is due at the very end of its stage; half a call more makes k6 send it.
  out.push({ target: 1, duration: '0s' }, { target: 1, duration: '500ms' })
  return out
}
