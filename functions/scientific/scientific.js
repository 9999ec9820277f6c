// Searches a graph of 100,000 nodes breadth-first, as every question of "how far" does. SeBS calls it graph-bfs.
//
//   storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
//   source                   the node to begin with (default: 0)
//
// The graph is a sequence of little-endian 32-bit numbers: nodes n, edges m, then n + 1 offsets and m targets; the neighbours of node v are
// targets[offsets[v]] up to targets[offsets[v + 1]]. What is stored are n such numbers, each node's distance from the source, 4294967295
// where none leads.
const FAR = 0xffffffff

async function main (args) {
  const begin = performance.now()
  const content = await ask('GET', url(args, 'input'))
  const arrived = performance.now()
  const { distances, levels } = search(...graph(content), args.source ?? 0)
  const computed = performance.now()
  await ask('PUT', url(args, 'output'), Buffer.from(distances.buffer))
  return {
    output: args.output,
    nodes: distances.length,
    levels,
    ms: { download: arrived - begin, compute: computed - arrived, upload: performance.now() - computed }
  }
}

function graph (content) {
  const words = new Uint32Array(content)
  const [nodes, edges] = words
  if (words.length !== 2 + nodes + 1 + edges) throw new Error(`the graph says ${nodes} nodes and ${edges} edges, and has ${words.length} numbers`)
  return [words.subarray(2, 3 + nodes), words.subarray(3 + nodes)]
}

function search (offsets, targets, source) {
  const distances = new Uint32Array(offsets.length - 1).fill(FAR)
  const queue = new Uint32Array(distances.length)
  const levels = []
  distances[source] = 0
  queue[0] = source
  for (let begin = 0, end = 1; begin < end;) {
    const level = end
    levels.push(level - begin)
    for (; begin < level; begin++) {
      for (let n = offsets[queue[begin]]; n < offsets[queue[begin] + 1]; n++) {
        if (distances[targets[n]] === FAR) {
          distances[targets[n]] = levels.length
          queue[end++] = targets[n]
        }
      }
    }
  }
  return { distances, levels }
}

function url (args, name) {
  if (!args.storage || !args[name]) throw new Error(`the parameters storage and ${name} are needed, as http://HOST:PORT and BUCKET/KEY`)
  return `${args.storage}/${args[name]}`
}

async function ask (method, url, body) {
  const answer = await fetch(url, { method, body }).catch(error => { throw new Error(`${method} ${url}: ${error.cause ?? error}`) })
  if (!answer.ok) throw new Error(`${method} ${url}: ${answer.status} ${await answer.text()}`)
  return answer.arrayBuffer()
}

exports.main = main
