// Packs a document of 9.7 MB into a zip archive, as a backup or an export does. SeBS calls it compression.
//
//   storage, input, output   the storage server's URL, and the objects that are read and written there, as bucket/key
const zlib = require('zlib')

async function main (args) {
  const begin = performance.now()
  const content = Buffer.from(await ask('GET', url(args, 'input')))
  const arrived = performance.now()
  const archive = pack(args.input.split('/').pop(), content)
  const computed = performance.now()
  await ask('PUT', url(args, 'output'), archive)
  return {
    output: args.output,
    bytes: archive.length,
    ratio: content.length / archive.length,
    ms: { download: arrived - begin, compute: computed - arrived, upload: performance.now() - computed }
  }
}

// pack writes an archive of one member: its header and content, the directory that lists it, the end that says where that is.
function pack (name, content) {
  const packed = zlib.deflateRawSync(content)
  const path = Buffer.from(name)
  const entry = Buffer.alloc(26) // what header and directory both say of the member
  entry.writeUInt16LE(20, 0) // readable by version 2.0
  entry.writeUInt16LE(0x800, 2) // the name is UTF-8
  entry.writeUInt16LE(8, 4) // deflate
  entry.writeUInt16LE(0x21, 8) // 1 January 1980: the same bytes at any time of day
  entry.writeUInt32LE(crc32(content), 10)
  entry.writeUInt32LE(packed.length, 14)
  entry.writeUInt32LE(content.length, 18)
  entry.writeUInt16LE(path.length, 22)
  const header = Buffer.concat([Buffer.from('PK\x03\x04'), entry, path])
  const listed = Buffer.concat([Buffer.from('PK\x01\x02\x14\x00'), entry, Buffer.alloc(14), path]) // the member begins at 0
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06', 'latin1')
  end.writeUInt16LE(1, 8)
  end.writeUInt16LE(1, 10)
  end.writeUInt32LE(listed.length, 12)
  end.writeUInt32LE(header.length + packed.length, 16)
  return Buffer.concat([header, packed, listed, end])
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1
  return n
})

function crc32 (content) { // zlib has it from Node.js 20 on
  let crc = -1
  for (let n = 0; n < content.length; n++) crc = TABLE[(crc ^ content[n]) & 255] ^ (crc >>> 8)
  return (crc ^ -1) >>> 0
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
