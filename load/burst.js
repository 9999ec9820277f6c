// Calls functions that nobody has called yet, N calls at once, one function after the other.
//
//   fastiov k6 run -e N=200 -e FUNCTIONS=hello,image load/burst.js
import exec from 'k6/execution'
import { fresh, invoke, number, options as complete, remove, summarize } from './fastiov.js'

const N = number('N', 7)

export const options = complete({
  burst: { executor: 'per-vu-iterations', vus: N, iterations: 1, maxDuration: '15m' }
})

export function setup () { return fresh()[0] }

export default function (names) { invoke(names[exec.vu.idInTest % names.length]) }

export function teardown (names) { remove(names) }

export const handleSummary = summarize('burst')
