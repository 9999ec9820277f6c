// The scenarios share this: it deploys and calls functions, measures the calls, and writes the
// summary.
//
//   APIHOST, AUTH    where fastiov is and its key, as in ~/.wskprops; `fastiov k6` sets both
//   FUNCTIONS        the functions to call (hello), by the names that they are deployed under
//   COLD_P99_MS, WARM_P99_MS, FAILED   the thresholds (120000, 5000, 0)
//   SUMMARY          a file for the summary as JSON
//
// Each run calls copies of the functions, under names of its own, so that it begins with nothing
// warm. The activation record says whether a call was cold or warm. k6 also sends the metrics to
// Prometheus, with -o experimental-prometheus-rw.
import { fail, sleep } from 'k6'
import encoding from 'k6/encoding'
import http from 'k6/http'
import { Counter, Rate, Trend } from 'k6/metrics'

const api = `${__ENV.APIHOST || 'http://127.0.0.1:3233'}/api/v1/namespaces/_`
const headers = { Authorization: `Basic ${encoding.b64encode(__ENV.AUTH || '')}`, 'Content-Type': 'application/json' }
const hello = open('../functions/hello/hello.py')

// fastiov's names of the stages, in the order in which they come.
const STAGES = ['queue', 'image', 'cni', '0-cgroup', 'vmm', 'runtime', '1-dma-ram', '2-virtiofs', '3-dma-image', '4-vfio-dev', 'guest-boot',
  'agent', '5-vf-driver', 'app-init', 'first-byte', 'unattributed']
const metricOf = stage => 'stage_' + stage.replace(/-/g, '_')

// From the request to the last byte of its answer; the tag start is cold or warm.
const invocation = new Trend('invocation', true)
const coverage = new Trend('stage_coverage')
const stages = Object.fromEntries(STAGES.map(stage => [stage, new Trend(metricOf(stage), true)]))
const cold = new Rate('cold') // of the calls that ran
const failed = new Rate('failed') // of all calls, for any of these reasons
const reasons = {
  refused: new Counter('refused'), // 429 and 503: no room, or too many
  broken: new Counter('broken'), // the function failed, or fastiov did
  unanswered: new Counter('unanswered') // no answer at all
}

export const number = (name, otherwise) => Number(__ENV[name] || otherwise)
export const functions = (__ENV.FUNCTIONS || 'hello').split(',')

// options adds to the options of a scenario what all scenarios have.
export function options (scenarios, thresholds = {}) {
  return {
    scenarios,
    thresholds: {
      'invocation{start:cold}': [`p(99)<${number('COLD_P99_MS', 120000)}`],
      'invocation{start:warm}': [`p(99)<${number('WARM_P99_MS', 5000)}`],
      failed: [`rate<=${number('FAILED', 0)}`],
      dropped_iterations: ['count==0'], // else the load was less than asked for
      ...thresholds
    },
    summaryTrendStats: ['count', 'med', 'p(90)', 'p(99)', 'p(99.9)', 'max'],
    setupTimeout: '5m',
    teardownTimeout: '5m'
  }
}

function ask (method, path, body) {
  return http.request(method, `${api}/${path}`, body && JSON.stringify(body), { headers, tags: { name: `${method} ${path.split('/')[0]}` } })
}

// copy deploys a function again under another name.
export function copy (name, as) {
  const found = ask('GET', `actions/${name}`)
  let action
  if (found.status === 200) {
    const { exec, parameters, limits } = found.json()
    action = { exec: { kind: exec.kind, code: exec.code, binary: exec.binary, main: exec.main }, parameters, limits }
  } else if (found.status === 404 && name === 'hello') {
    action = { exec: { kind: 'python:3', code: hello }, limits: { timeout: 300000 } }
  } else if (found.status === 404) {
    fail(`there is no function ${name}; deploy it by wsk project deploy --manifest functions/${name}/manifest.yaml`)
  } else {
    fail(`${api}: ${found.status} ${found.body || found.error}; is fastiov up, and AUTH its key?`)
  }
  put(as, action)
  return as
}

export function put (name, action) {
  const made = ask('PUT', `actions/${name}?overwrite=true`, action)
  if (made.status !== 200) fail(`deploying ${name}: ${made.status} ${made.body || made.error}`)
}

// fresh deploys a copy of each function for each round, and returns their names by round.
export function fresh (rounds = 1) {
  const run = Date.now().toString(36)
  return Array.from({ length: rounds }, (_, round) => functions.map(name => copy(name, `${name}-load-${run}-${round}`)))
}

export function remove (names) {
  for (const name of names) ask('DELETE', `actions/${name}`)
}

// invoke calls a function and measures the call.
export function invoke (action, args = {}) {
  const reply = http.post(`${api}/actions/${action}?blocking=true&result=false`, JSON.stringify(args), {
    headers, tags: { name: 'invoke' }, timeout: '90s', responseCallback: http.expectedStatuses(200, 202)
  })
  const record = recordOf(reply)
  const reason = !reply.status ? 'unanswered' : [429, 503].includes(reply.status) ? 'refused' : record?.response?.success ? '' : 'broken'
  failed.add(reason !== '')
  if (reason) {
    reasons[reason].add(1)
    console.error(`${action} ${reason}: ${reply.status} ${(reply.body || reply.error).slice(0, 300)}`)
  }
  if (!record?.activationId || reason === 'unanswered' || reason === 'refused') return
  const said = Object.fromEntries(record.annotations.map(({ key, value }) => [key, value]))
  const start = said.initTime === undefined && !said.coldStart ? 'warm' : 'cold'
  cold.add(start === 'cold')
  invocation.add(reply.status === 202 ? said.coldStart?.endToEndMs ?? said.waitTime + record.duration : reply.timings.duration, { start })
  if (!said.coldStart) return
  coverage.add(said.coldStart.coverage)
  for (const [stage, ms] of Object.entries(said.coldStart.stagesMs)) stages[stage]?.add(ms)
}

// recordOf returns the activation record behind an answer. It is the answer itself, or, where the
// call took longer than a blocking call may, it is fetched until it is there.
function recordOf (reply) {
  if (reply.status !== 202) return [200, 502, 500].includes(reply.status) ? read(reply) : null
  const id = read(reply)?.activationId
  for (let seconds = 0; seconds < 600; seconds++) {
    const found = ask('GET', `activations/${id}`)
    if (found.status !== 404) return found.status === 200 ? read(found) : null
    sleep(1)
  }
  return null
}

function read (reply) {
  try {
    return reply.json()
  } catch { // the answer is not JSON, so it is not fastiov's
    return null
  }
}

// summarize returns a handleSummary function for k6.
export function summarize (name) {
  return data => {
    const text = table(name, data.metrics)
    const out = { stdout: text }
    if (__ENV.SUMMARY) out[__ENV.SUMMARY] = JSON.stringify(data, null, 2)
    return out
  }
}

function table (name, metrics) {
  const count = metric => metrics[metric]?.values.count ?? 0
  const asked = (metrics.failed?.values.passes ?? 0) + (metrics.failed?.values.fails ?? 0)
  const share = 100 * (metrics.cold?.values.rate ?? 0)
  const lines = [
    `${name}: ${asked} called, ${count('invocation')} ran, ${share.toFixed(1)} % of them cold; ` +
      `${count('refused')} refused, ${count('broken')} failed, ${count('unanswered')} unanswered, ${count('dropped_iterations')} never sent`,
    '',
    row('ms', ['count', 'p50', 'p90', 'p99', 'p99.9', 'max'])
  ]
  for (const [label, metric] of [['all', 'invocation'], ['cold', 'invocation{start:cold}'], ['warm', 'invocation{start:warm}']]) {
    if (count(metric)) lines.push(row(label, figures(metrics[metric])))
  }
  const started = STAGES.filter(stage => count(metricOf(stage)))
  if (started.length) lines.push('', 'where the time of the cold ones went')
  for (const stage of started) lines.push(row(stage, figures(metrics[metricOf(stage)])))
  if (metrics.stage_coverage) lines.push(`stage coverage ${metrics.stage_coverage.values.med.toFixed(3)} (median)`)
  for (const [metric, { thresholds }] of Object.entries(metrics)) {
    for (const [threshold, { ok }] of Object.entries(thresholds ?? {})) if (!ok) lines.push(`MISSED: ${metric} ${threshold}`)
  }
  return `\n${lines.join('\n')}\n`
}

function figures ({ values }) {
  return [values.count, ...['med', 'p(90)', 'p(99)', 'p(99.9)', 'max'].map(stat => values[stat].toFixed(1))]
}

function row (label, cells) {
  return label.padStart(14) + cells.map(cell => String(cell).padStart(11)).join('')
}
