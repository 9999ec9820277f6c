// Sends RATE calls a second for DURATION, whether earlier calls have been answered or not.
//
//   fastiov k6 run -e RATE=20 -e DURATION=1m load/steady.js
import exec from 'k6/execution'
import { fresh, invoke, number, options as complete, remove, summarize } from './fastiov.js'

export const options = complete({
  steady: {
    executor: 'constant-arrival-rate',
    rate: number('RATE', 10),
    duration: __ENV.DURATION || '30s',
    preAllocatedVUs: number('VUS', 200)
  }
})

export function setup () { return fresh()[0] }

export default function (names) { invoke(names[exec.scenario.iterationInTest % names.length]) }

export function teardown (names) { remove(names) }

export const handleSummary = summarize('steady')
