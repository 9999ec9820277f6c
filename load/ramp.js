// Goes from one call a second to PEAK a second and back, in DURATION seconds each way. It shows
// where the tail begins to grow.
//
//   fastiov k6 run -e PEAK=100 -e DURATION=60 load/ramp.js
import exec from 'k6/execution'
import { fresh, invoke, number, options as complete, remove, summarize } from './fastiov.js'

const each = `${number('DURATION', 30)}s`

export const options = complete({
  ramp: {
    executor: 'ramping-arrival-rate',
    startRate: 1,
    stages: [{ duration: each, target: number('PEAK', 20) }, { duration: each, target: 1 }],
    preAllocatedVUs: number('VUS', 300)
  }
})

export function setup () { return fresh()[0] }

export default function (names) { invoke(names[exec.scenario.iterationInTest % names.length]) }

export function teardown (names) { remove(names) }

export const handleSummary = summarize('ramp')
