// Walks one client of the TypeScript SDK through Gatebus, in front of the fake
// peer, and prints what held: one line "STEP ok" or "STEP FAIL why" a step.
//
//   node sdk.cjs MODULES CLIENT PREFIX DOOR
//
// CLIENT is v1, legacy or auto (v2 in each era); PREFIX is before the names of the
// tools; DOOR is {"url", "token"} or {"command", "args"} in JSON. From the
// environment: GATEBUS, the program; PEER_FILE, which the fake writes; ID, of this
// walk; CANNOT, a step that is left out.
const { createRequire } = require('module')
const { execFileSync } = require('child_process')
const { deepStrictEqual: same } = require('assert')
const { readFileSync } = require('fs')

const [modules, kind, prefix, doorText] = process.argv.slice(2)
const door = JSON.parse(doorText)
const need = createRequire(modules + '/')
const { GATEBUS, PEER_FILE, ID, CANNOT } = process.env
const within = 30000

const pause = (ms) => new Promise((done) => setTimeout(done, ms))
// until waits for a condition.
async function until(what, holds) {
  for (const end = Date.now() + within; Date.now() < end; await pause(20)) if (holds()) return
  throw new Error('in vain: ' + what)
}
const noted = (line) => {
  try { return readFileSync(PEER_FILE, 'utf8').split('\n').includes(line) } catch { return false }
}
// approve says yes to all that a person is asked.
function approve() {
  const ids = execFileSync(GATEBUS, ['approvals', 'list', '-o', 'name'], { encoding: 'utf8' }).split('\n').filter(Boolean)
  for (const id of ids) execFileSync(GATEBUS, ['approve', id, '-q'])
  return ids.length
}

const changes = []
function parts() {
  const listChanged = { tools: { onChanged: (error, tools) => changes.push(error ?? tools.map((t) => t.name)) } }
  const info = { name: 'show', version: '1' }
  if (kind === 'v1') {
    const { Client } = need('@modelcontextprotocol/sdk/client/index.js')
    const { StreamableHTTPClientTransport } = need('@modelcontextprotocol/sdk/client/streamableHttp.js')
    const { StdioClientTransport } = need('@modelcontextprotocol/sdk/client/stdio.js')
    return { client: new Client(info, { listChanged }), StreamableHTTPClientTransport, StdioClientTransport }
  }
  const { Client, StreamableHTTPClientTransport } = need('@modelcontextprotocol/client')
  const { StdioClientTransport } = need('@modelcontextprotocol/client/stdio')
  return { client: new Client(info, { listChanged, versionNegotiation: { mode: kind } }), StreamableHTTPClientTransport, StdioClientTransport }
}
const { client, StreamableHTTPClientTransport, StdioClientTransport } = parts()
const transport = door.url
  ? new StreamableHTTPClientTransport(new URL(door.url), { requestInit: { headers: { Authorization: 'Bearer ' + door.token } } })
  : new StdioClientTransport({ command: door.command, args: door.args, env: process.env, stderr: 'inherit' })

const before = ['echo', 'sum', 'wait', 'grow']
const names = (list) => (prefix ? [...list].sort() : list).map((n) => prefix + n)
const call = (name, args, options) => {
  const params = { name: prefix + name, arguments: args }
  return kind === 'v1' ? client.callTool(params, undefined, options) : client.callTool(params, options)
}
const shown = (r) => ({ content: r.content, structured: r.structuredContent, isError: r.isError ?? false })
const text = (t) => [{ type: 'text', text: t }]

const steps = {
  async connect() {
    await client.connect(transport)
    same(client.getServerVersion().name, 'gatebus')
    const version = kind === 'v1' ? (transport.protocolVersion ?? '2025-11-25') : client.getNegotiatedProtocolVersion()
    same(version, kind === 'auto' ? '2026-07-28' : '2025-11-25')
  },
  async list() {
    same((await client.listTools()).tools, [], 'before a person said yes')
    await until('an approval', () => approve() > 0)
    await until('the tools after the yes', () => changes.length > 0 && changes.at(-1).length > 0)
    const { tools } = await client.listTools()
    same(tools.map((t) => t.name), names(before))
    const echo = tools.find((t) => t.name === prefix + 'echo')
    same(echo.description, 'Returns text.')
    same(echo.inputSchema, { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] })
    const sum = tools.find((t) => t.name === prefix + 'sum')
    same(sum.outputSchema, { type: 'object', properties: { sum: { type: 'number' } }, required: ['sum'] })
    same(sum.annotations, { readOnlyHint: true })
  },
  async call() {
    const odd = 'é \u2028 😀 </b> "9007199254740993"\n'
    same(shown(await call('echo', { text: odd })), { content: text(odd), structured: undefined, isError: false })
    same(shown(await call('sum', { a: 2, b: 3 })), { content: text('5'), structured: { sum: 5 }, isError: false })
    const many = await Promise.all(Array.from({ length: 10 }, (_, i) => call('echo', { text: 'n' + i })))
    same(many.map((r) => r.content[0].text), many.map((_, i) => 'n' + i))
  },
  async changed() {
    const had = changes.length
    same(shown(await call('grow', {})), { content: text('grown'), structured: undefined, isError: false })
    await until('the notice of the change', () => changes.slice(had).some((c) => c.includes?.(prefix + 'grown')))
    same((await client.listTools()).tools.map((t) => t.name), names([...before, 'grown']))
  },
  async cancel() {
    const stop = new AbortController()
    const gone = call('wait', { id: ID }, { signal: stop.signal }).then(() => 'answered', () => 'rejected')
    await until('the call at the server', () => noted('started ' + ID))
    stop.abort('not wanted any more')
    same(await gone, 'rejected')
    await until('the cancel at the server', () => noted('cancelled ' + ID))
    same(shown(await call('echo', { text: 'still there' })).content, text('still there'))
  },
}

async function main() {
  for (const [name, step] of Object.entries(steps)) {
    if (name === CANNOT) {
      console.log(name, '-')
      continue
    }
    try {
      await step()
      console.log(name, 'ok')
    } catch (e) {
      console.log(name, 'FAIL', String(e?.message ?? e).replace(/\s+/g, ' ').slice(0, 300), JSON.stringify(changes.map(String)).slice(0, 200))
      if (name === 'connect') break
    }
  }
  await Promise.race([client.close(), pause(5000)])
  process.exit(0)
}
main()
