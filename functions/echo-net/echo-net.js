// Sends back over the network what it fetched from there: what a network costs, and nothing else.
//
//   storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
const http = require('http')

async function main (args) {
  for (const name of ['storage', 'input', 'output']) {
    if (!args[name]) throw new Error(`the parameter ${name} is needed: storage is http://HOST:PORT, input and output are BUCKET/KEY`)
  }
  const agent = new http.Agent({ keepAlive: true })
  const begin = performance.now()
  const [content, address] = await ask(agent, args, 'GET', args.input)
  const fetched = performance.now()
  await ask(agent, args, 'PUT', args.output, content)
  agent.destroy()
  return {
    output: args.output,
    bytes: content.length,
    address,
    ms: { download: fetched - begin, upload: performance.now() - fetched }
  }
}

function ask (agent, args, method, key, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(`${args.storage}/${key}`, { method, agent, headers: { 'Content-Length': body ? body.length : 0 } }, answer => {
      const chunks = []
      const address = answer.socket.localAddress
      answer.on('error', reject)
      answer.on('data', chunk => chunks.push(chunk))
      answer.on('end', () => {
        const content = Buffer.concat(chunks)
        if (answer.statusCode === 200) resolve([content, address])
        else reject(new Error(`${method} ${key}: ${answer.statusCode} ${content.toString('utf8', 0, 200)}`))
      })
    })
    request.on('error', reject)
    request.end(body)
  })
}

exports.main = main
