// Replays a trace of Azure Functions. Every function of the trace becomes a function here, which
// takes as long as the trace says. Every call arrives at its time in the trace, or SPEED times as
// fast. azure.js reads the trace.
//
//   TRACE                the calls (traces/azure2019-calls.csv)
//   DURATIONS, MEMORY    the two other files of a 2019 trace
//   FROM, MINUTES        the part of the trace to replay (minute 0, 10 minutes)
//   SPEED                how many times as fast (1)
//
//   fastiov k6 run -e MINUTES=5 \
//     -e TRACE=$PWD/AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt load/trace.js
import { SharedArray } from 'k6/data'
import exec from 'k6/execution'
import { parse, stages as stagesOf } from './azure.js'
import { invoke, number, options as complete, put, remove, summarize } from './fastiov.js'

const speed = number('SPEED', 1)
const sleeper = open('./sleeper.py')

// read runs once for all of k6's virtual users. They share the result, and each takes call by call.
function read () {
  const own = !__ENV.TRACE
  const file = (name, otherwise) => __ENV[name] ? open(__ENV[name]) : own ? open(otherwise) : ''
  return parse(file('TRACE', './traces/azure2019-calls.csv'), {
    durations: file('DURATIONS', './traces/azure2019-durations.csv'),
    memory: file('MEMORY', './traces/azure2019-memory.csv'),
    from: number('FROM', 0),
    minutes: number('MINUTES', 10)
  })
}
let trace // only in the virtual user that reads
const calls = new SharedArray('calls', () => (trace ??= read()).calls)
const known = new SharedArray('functions', () => {
  const { calls, memory } = trace ??= read()
  return [...new Set(calls.map(call => call.function))].map(name => ({ name, memory: memory[name] }))
})
const stages = new SharedArray('stages', () => stagesOf((trace ??= read()).calls, speed))

export const options = complete({
  trace: { executor: 'ramping-arrival-rate', startRate: 0, stages: [...stages], preAllocatedVUs: number('VUS', 300) }
})

export function setup () {
  const run = Date.now().toString(36)
  const names = {}
  for (const { name, memory } of known) {
    names[name] = `trace-load-${run}-${name.slice(0, 24)}`
    put(names[name], {
      exec: { kind: 'python:3', code: sleeper },
      limits: { memory: Math.min(512, Math.max(128, Math.ceil((memory ?? 256) / 64) * 64)), timeout: 300000 }
    })
  }
  return names
}

export default function (names) {
  const call = calls[exec.scenario.iterationInTest]
  if (call) invoke(names[call.function], { sleep_ms: Math.min(240000, Math.round(call.ms)) })
}

export function teardown (names) { remove(Object.values(names)) }

export const handleSummary = summarize('trace')
