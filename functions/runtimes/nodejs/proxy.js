// Runs one JavaScript action behind the OpenWhisk container protocol.
//
//   POST /init {"value": {"code", "main", "binary", "env"}}   loads the action, once
//   POST /run  {"value": {...}, "activation_id": ..., ...}    calls it; the reply is what it returned or resolved to
//
// States: ready -> initialized -> stopped. A failed init leaves it ready; an action that throws, or breaks loose of its promise, stops
// it, since nobody knows what it left behind. Runs are served one at a time.
'use strict'
const http = require('http')

const SENTINEL = 'XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n'

class Refused extends Error {
  constructor (status, reason) {
    super(reason)
    this.status = status
  }
}

let state = 'ready'
let main = null
let broken = null // rejects the run under way when the action throws outside of its promise
let turn = Promise.resolve() // requests wait here for those before them

process.on('uncaughtException', stop)
process.on('unhandledRejection', stop)

function stop (error) {
  console.error(error)
  state = 'stopped'
  if (broken) broken(error)
}

async function init (request) {
  if (state !== 'ready') throw new Refused(403, 'Cannot initialize the action more than once.')
  const value = request.value
  if (!isObject(value) || typeof value.code !== 'string' || value.code === '') throw new Refused(403, 'Missing main/no code to execute.')
  setEnv('', value.env || {})
  try {
    main = value.binary ? await loadZip(value.code, value.main || 'main') : loadText(value.code, value.main || 'main')
    if (typeof main !== 'function') throw new TypeError(`Action entrypoint '${value.main || 'main'}' is not a function.`)
  } catch (error) {
    if (error instanceof Refused) throw error
    console.error(error)
    throw new Refused(502, `Initialization has failed due to: ${(error && error.stack) || error}`)
  }
  state = 'initialized'
  return { OK: true }
}

async function run (request) {
  if (state !== 'initialized') throw new Refused(403, `System not ready, status is ${state}.`)
  const { value, ...context } = request
  setEnv('__OW_', context)
  try {
    return await call(value === undefined || value === null ? {} : value)
  } finally {
    endLogs()
  }
}

async function call (value) {
  const loose = new Promise((resolve, reject) => { broken = reject })
  loose.catch(() => {})
  let promise
  try {
    promise = main(value)
  } catch (error) {
    stop(error)
    throw new Refused(502, `An error has occurred: ${error}`)
  }
  const settled = Promise.resolve(promise).then(
    result => result === undefined ? {} : result,
    error => ({ error: error ? serializable(error) : {} }))
  const result = await Promise.race([settled, loose]).catch(error => {
    throw new Refused(502, `An error has occurred: ${error}`)
  }).finally(() => { broken = null })
  if (typeof result !== 'object' || result === null) throw new Refused(502, 'The action did not return a dictionary or array.')
  return result
}

// serializable turns an Error, whose fields JSON does not see, into a plain object.
function serializable (error) {
  if (!(error instanceof Error)) return error
  return { name: error.name, message: error.message, stack: error.stack, ...error }
}

function isObject (value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function setEnv (prefix, settings) {
  for (const [key, value] of Object.entries(settings)) {
    if (value === null || value === undefined) continue
    process.env[prefix + (prefix ? key.toUpperCase() : key)] = typeof value === 'string' ? value : JSON.stringify(value)
  }
}

// loadText evaluates an action that is one file. Its function is a name of the file's scope, or of what the file exports.
function loadText (code, name) {
  const { createRequire } = require('module')
  const home = newHome()
  const module = { exports: {} }
  const wrapped = `(function (exports, require, module, __filename, __dirname) { ${code}
;try { return ${name} } catch (error) { if (!(error instanceof ReferenceError)) throw error; return module.exports.${name} } })`
  const load = require('vm').runInThisContext(wrapped, { filename: `${home}/action.js` })
  return load(module.exports, createRequire(`${home}/action.js`), module, `${home}/action.js`, home)
}

// loadZip unpacks an action that is a package and loads its main file.
async function loadZip (code, name) {
  if (!/^[A-Za-z0-9+/\s]*={0,2}\s*$/.test(code)) throw new Refused(400, 'cannot decode the request: the code is not base64')
  const home = newHome()
  unzip(Buffer.from(code, 'base64'), home)
  const fs = require('fs')
  if (!fs.existsSync(`${home}/package.json`) && !fs.existsSync(`${home}/index.js`)) {
    throw new Refused(502, 'Zipped actions must contain either package.json or index.js at the root.')
  }
  const loaded = await loadModule(home)
  return name.split('.').reduce((at, key) => at && at[key], loaded)
}

async function loadModule (home) {
  const { createRequire } = require('module')
  const requireFrom = createRequire(`${home}/`)
  try {
    return requireFrom(home)
  } catch (error) {
    if (error.code !== 'ERR_REQUIRE_ESM') throw error
    return import(require('url').pathToFileURL(requireFrom.resolve(home)).href)
  }
}

function newHome () {
  const home = require('fs').mkdtempSync(`${require('os').tmpdir()}/action-`)
  process.chdir(home)
  return home
}

// unzip reads the central directory, as everybody who reads a zip does, and writes regular files and directories below home.
function unzip (zip, home) {
  const fs = require('fs')
  const path = require('path')
  const broken = reason => new Refused(502, `cannot unzip the action: ${reason}`)
  const end = zip.lastIndexOf(Buffer.from('PK\x05\x06'))
  if (end < 0 || end + 22 > zip.length) throw broken('no central directory')
  let at = zip.readUInt32LE(end + 16)
  for (let n = zip.readUInt16LE(end + 10); n > 0; n--) {
    if (at + 46 > zip.length || zip.readUInt32LE(at) !== 0x02014b50) throw broken('bad central directory')
    const [method, packed, size, local] = [zip.readUInt16LE(at + 10), zip.readUInt32LE(at + 20), zip.readUInt32LE(at + 24), zip.readUInt32LE(at + 42)]
    const [nameLength, extra, comment] = [zip.readUInt16LE(at + 28), zip.readUInt16LE(at + 30), zip.readUInt16LE(at + 32)]
    const name = zip.toString('utf8', at + 46, at + 46 + nameLength)
    const mode = zip.readUInt32LE(at + 38) >>> 16
    at += 46 + nameLength + extra + comment
    const file = path.join(home, name)
    if (file !== home && !file.startsWith(home + path.sep)) throw broken(`${name} leads out of the archive`)
    if (name.endsWith('/')) {
      fs.mkdirSync(file, { recursive: true })
      continue
    }
    fs.mkdirSync(path.dirname(file), { recursive: true })
    fs.writeFileSync(file, member(zip, local, method, packed, size, broken), { mode: (mode & 0o777) || 0o644 })
  }
}

function member (zip, local, method, packed, size, broken) {
  if (local + 30 > zip.length) throw broken('a member lies outside the archive')
  const begin = local + 30 + zip.readUInt16LE(local + 26) + zip.readUInt16LE(local + 28)
  const data = zip.subarray(begin, begin + packed)
  if (method === 0) return data
  if (method !== 8) throw broken(`compression method ${method} is unknown`)
  const content = require('zlib').inflateRawSync(data, { maxOutputLength: Math.max(size, 1) })
  if (content.length !== size) throw broken('a member has not the size it says')
  return content
}

function endLogs () {
  process.stdout.write(SENTINEL)
  process.stderr.write(SENTINEL)
}

// answer routes one request. It returns the status and the JSON text of the reply.
async function answer (method, path, body) {
  try {
    const handler = { '/init': init, '/run': run }[path]
    if (!handler) throw new Refused(404, 'no such path; the runtime serves POST /init and POST /run')
    if (method !== 'POST') throw new Refused(405, 'use POST')
    return [200, encode(await handler(decode(body)))]
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error)
    return [error.status || 502, JSON.stringify({ error: error.message })]
  }
}

function decode (body) {
  try {
    const request = JSON.parse(body)
    if (isObject(request)) return request
  } catch (error) {
    throw new Refused(400, `Error unmarshaling request: ${error.message}`)
  }
  throw new Refused(400, 'Error unmarshaling request: not an object')
}

function encode (result) {
  try {
    return JSON.stringify(result)
  } catch (error) {
    throw new Refused(502, `The action's result is not JSON: ${error.message}`)
  }
}

const server = http.createServer((request, response) => {
  const chunks = []
  request.on('data', chunk => chunks.push(chunk))
  request.on('end', () => {
    turn = turn.then(async () => {
      const [status, text] = await answer(request.method, request.url, Buffer.concat(chunks).toString('utf8'))
      response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) })
      response.end(text)
    })
  })
})
server.timeout = server.requestTimeout = server.headersTimeout = server.keepAliveTimeout = 0
server.listen(Number(process.env.PORT || 8080), '127.0.0.1')
