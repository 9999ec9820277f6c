// Drives a fastiov endpoint by Apache's own JavaScript client, through everything that the client can ask for. Its sandboxes are
// simulated: every function answers with its arguments. Exits with 0 when all of it went as it should.
'use strict'

const assert = require('node:assert/strict')
const openwhisk = require('openwhisk')

const { APIHOST, AUTH, APIHOST_HTTPS } = process.env
const ow = openwhisk({ api: `${APIHOST}/api/v1/`, api_key: AUTH })

const code = 'function main(args) { return args }'
const names = (list) => list.map((e) => e.name).sort().join(' ')

async function refused (status, call) {
  const error = await call.then(() => null, (e) => e)
  assert.ok(error, `not refused, ${status} expected`)
  assert.equal(error.statusCode, status, String(error))
  return error
}

async function actions () {
  await ow.actions.create({ name: 'hello', action: code, kind: 'nodejs:default', params: { a: 1 }, limits: { memory: 128 } })
  await refused(409, ow.actions.create({ name: 'hello', action: code }))
  const updated = await ow.actions.update({ name: 'hello', action: code, kind: 'nodejs:default', params: { a: 2 }, annotations: { x: 'y' } })
  assert.equal(updated.version, '0.0.2')
  const got = await ow.actions.get({ name: 'hello' })
  assert.equal(got.exec.code, code)
  assert.equal(got.exec.binary, false)
  assert.equal(got.limits.memory, 128)
  assert.equal(names(await ow.actions.list({ limit: 10, skip: 0 })), 'hello')
  assert.deepEqual(await ow.actions.invoke({ name: 'hello', blocking: true, result: true, params: { b: 3 } }), { a: 2, b: 3 })
  const full = await ow.actions.invoke({ name: '/_/hello', blocking: true, params: { b: 4 } })
  assert.deepEqual(full.response.result, { a: 2, b: 4 })
  assert.equal(full.response.status, 'success')
  const { activationId } = await ow.actions.invoke({ name: 'hello', params: { later: true } })
  assert.match(activationId, /^[0-9a-f]{32}$/)
  const failed = await refused(502, ow.actions.invoke({ name: 'hello', blocking: true, params: { error: 'no' } }))
  assert.equal(failed.error.response.status, 'application error')
  await refused(404, ow.actions.invoke({ name: 'nothing', blocking: true }))
  await refused(400, ow.actions.create({ name: 'bad', action: code, kind: 'cobol:1' }))
  await ow.actions.create({ name: 'chain', sequence: ['/_/hello', '/_/hello'] })
  assert.deepEqual((await ow.actions.get({ name: 'chain' })).exec.components, ['/guest/hello', '/guest/hello'])
  await ow.actions.create({ name: 'zip', action: Buffer.from('PK\x03\x04'), kind: 'nodejs:default' })
  assert.equal((await ow.actions.get({ name: 'zip' })).exec.binary, true)
  assert.equal((await ow.actions.delete({ name: 'zip' })).name, 'zip')
  return activationId
}

async function activations (id) {
  let got = null
  for (let tries = 0; got === null && tries < 100; tries++) {
    got = await ow.activations.get({ name: id }).catch(() => new Promise((resolve) => setTimeout(resolve, 50, null)))
  }
  assert.deepEqual(got.response.result, { a: 2, later: true })
  assert.equal((await ow.activations.logs({ name: id })).logs.length, 1)
  assert.deepEqual((await ow.activations.result({ name: id })).result, { a: 2, later: true })
  const list = await ow.activations.list({ limit: 2, skip: 0 })
  assert.equal(list.length, 2)
  assert.equal(typeof list[0].statusCode, 'number')
  assert.equal((await ow.activations.list({ name: 'hello', since: Date.now() + 3600000 })).length, 0)
  assert.ok((await ow.activations.list({ name: 'hello', docs: true, upto: Date.now() }))[0].response)
  await refused(404, ow.activations.get({ name: '0'.repeat(32) }))
}

async function packages () {
  await ow.packages.create({ name: 'pk', package: { parameters: [{ key: 'p', value: 1 }], publish: true } })
  await ow.actions.create({ name: 'pk/inner', action: code, kind: 'nodejs:default' })
  await ow.packages.update({ name: 'bound', package: { binding: { namespace: '_', name: 'pk' }, parameters: [{ key: 'q', value: 2 }] } })
  assert.deepEqual(await ow.actions.invoke({ name: 'bound/inner', blocking: true, result: true }), { p: 1, q: 2 })
  assert.equal(names(await ow.packages.list()), 'bound pk')
  assert.equal(names((await ow.packages.get({ name: 'pk' })).actions), 'inner')
  await refused(409, ow.packages.delete({ name: 'pk' }))
  await ow.actions.delete({ name: 'pk/inner' })
  await ow.packages.delete({ name: 'bound' })
  await ow.packages.delete({ name: 'pk' })
}

async function triggers () {
  await ow.triggers.create({ name: 't', trigger: { parameters: [{ key: 't', value: 1 }] } })
  await ow.rules.create({ name: 'r', action: 'hello', trigger: 't' })
  assert.equal((await ow.rules.get({ name: 'r' })).status, 'active')
  const { activationId } = await ow.triggers.invoke({ name: 't', params: { fired: true } })
  assert.match((await ow.activations.logs({ name: activationId })).logs[0], /"rule":"guest\/r".*"success":true/)
  await ow.rules.disable({ name: 'r' })
  assert.equal((await ow.rules.get({ name: 'r' })).status, 'inactive')
  await ow.rules.enable({ name: 'r' })
  await ow.rules.update({ name: 'r', action: 'chain', trigger: 't' })
  assert.equal(names(await ow.rules.list()), 'r')
  await ow.rules.delete({ name: 'r' })
  await refused(400, ow.rules.create({ name: 'r', action: 'hello', trigger: 'nothing' }))
  const feed = await ow.feeds.create({ name: 'hello', trigger: 't', params: { every: 'day' } })
  assert.equal(feed.response.result.lifecycleEvent, 'CREATE')
  await ow.feeds.delete({ name: 'hello', trigger: 't' })
  assert.equal(names(await ow.triggers.list()), 't')
  await ow.triggers.delete({ name: 't' })
}

async function compositions () {
  assert.deepEqual(await ow.actions.invoke({ name: 'chain', blocking: true, result: true, params: { b: 3 } }), { a: 2, b: 3 })
  const { activationId, logs, annotations } = await ow.actions.invoke({ name: 'chain', blocking: true })
  assert.equal(logs.length, 2)
  assert.equal(annotations.find((a) => a.key === 'topmost').value, true)
  assert.equal((await ow.activations.get({ name: logs[1] })).cause, activationId)
  await refused(502, ow.actions.invoke({ name: 'chain', blocking: true, params: { error: 'no' } }))
  await refused(400, ow.actions.update({ name: 'chain', sequence: ['/_/chain'] }))
  await refused(400, ow.actions.create({ name: 'broken', sequence: ['/_/nothing'] }))
  await ow.actions.create({ name: 'conduct', action: code, kind: 'nodejs:default', annotations: { conductor: true } })
  assert.deepEqual(await ow.actions.invoke({ name: 'conduct', blocking: true, result: true, params: { action: 'hello' } }), { a: 2 })
  await ow.actions.delete({ name: 'conduct' })
}

async function web () {
  await ow.actions.create({ name: 'page', action: code, kind: 'nodejs:default', annotations: { 'web-export': true, final: true }, params: { a: 1 } })
  const url = `${APIHOST}/api/v1/web/guest/default/page`
  const told = await (await fetch(`${url}.json/a/path?b=2`)).json()
  assert.deepEqual([told.a, told.b, told.__ow_method, told.__ow_path], [1, '2', 'get', '/a/path'])
  const made = await fetch(url, { method: 'POST', body: JSON.stringify({ statusCode: 201, body: { c: 3 }, headers: { 'x-mine': 'yes' } }), headers: { 'content-type': 'application/json' } })
  assert.deepEqual([made.status, made.headers.get('x-mine'), await made.json()], [201, 'yes', { c: 3 }])
  assert.equal((await fetch(`${url}?a=2`)).status, 400)
  assert.equal((await fetch(url, { method: 'OPTIONS' })).headers.get('access-control-allow-origin'), '*')
  assert.equal((await fetch(`${APIHOST}/api/v1/web/guest/default/hello`)).status, 404)
  await ow.actions.delete({ name: 'page' })
}

async function others () {
  assert.deepEqual(await ow.namespaces.list(), ['guest'])
  await refused(401, openwhisk({ api: `${APIHOST}/api/v1/`, api_key: 'a:b' }).namespaces.list())
  const secure = openwhisk({ api: `${APIHOST_HTTPS}/api/v1/`, api_key: AUTH, ignore_certs: true })
  assert.equal(names(await secure.actions.list()), 'chain hello')
}

async function main () {
  await activations(await actions())
  await packages()
  await triggers()
  await compositions()
  await web()
  await others()
  console.log('everything went as it should')
}

main().catch((e) => {
  console.error(e)
  process.exit(1)
})
