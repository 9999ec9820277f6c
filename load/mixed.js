// Sends RATE calls a second to functions that are soon warm, and every EVERY seconds a burst of N
// calls to functions that are not. It shows what cold starts do to the warm calls of others.
//
//   fastiov k6 run -e RATE=20 -e N=50 -e BURSTS=5 -e EVERY=20 load/mixed.js
import exec from 'k6/execution'
import { fresh, invoke, number, options as complete, remove, summarize } from './fastiov.js'

const [bursts, every, N] = [number('BURSTS', 3), number('EVERY', 10), number('N', 7)]

const scenarios = {
  background: {
    executor: 'constant-arrival-rate',
    rate: number('RATE', 10),
    duration: `${(bursts + 1) * every}s`,
    preAllocatedVUs: number('VUS', 200),
    exec: 'background'
  }
}
for (let n = 1; n <= bursts; n++) {
  scenarios[`burst${n}`] = { executor: 'per-vu-iterations', vus: N, iterations: 1, startTime: `${n * every}s`, maxDuration: '15m', exec: 'burst' }
}

export const options = complete(scenarios, {
  'invocation{scenario:background,start:warm}': [`p(99)<${number('WARM_P99_MS', 5000)}`]
})

export function setup () { return fresh(bursts + 1) }

export function background (rounds) { invoke(rounds[0][exec.scenario.iterationInTest % rounds[0].length]) }

export function burst (rounds) {
  const names = rounds[Number(exec.scenario.name.slice('burst'.length))]
  invoke(names[exec.scenario.iterationInTest % names.length])
}

export function teardown (rounds) { remove(rounds.flat()) }

export const handleSummary = summarize('mixed')
