// Runs the suite's own client against one base URL, and writes the results as the suite's own code judges them.
//
//   node client.mjs SUITE BASE OUT [http2]
//
// With `http2` every request is one of HTTP/2. What the suite says that HTTP/2 has no words for is `inexpressible`.
// SUITE is the folder of the suite, as npm installs it. It can have one of two layouts: that of the package, or the newer
// one of the repository (`test-engine`). The suite's own runner leaves out browser-only tests.
import fs from 'node:fs'
import path from 'node:path'
import http2 from 'node:http2'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [suite, base, out, protocol] = process.argv.slice(2)
const isNew = fs.existsSync(path.join(suite, 'test-engine'))
const load = (name) => import(pathToFileURL(path.join(suite, isNew ? 'test-engine' : '.', name)))
const tests = (await import(pathToFileURL(path.join(suite, 'tests/index.mjs')))).default
const { runTests, getResults } = await load('client/runner.mjs')
const { determineTestResult } = await load(isNew ? 'lib/results.mjs' : 'lib/display.mjs')

class Inexpressible extends Error {
  name = 'Inexpressible'
}

// As much of `fetch` as the suite needs, over connections of HTTP/2 that requests share.
let session
function connected () {
  if (!session || session.closed || session.destroyed) {
    session = http2.connect(base)
    session.on('error', () => {})
  }
  return session
}
function fetchOverHttp2 (url, init = {}) {
  return new Promise((resolve, reject) => {
    // The suite's own HTTP/1 client collects interim responses.
    if (init.dispatcher) throw new Inexpressible('interim responses')
    const to = new URL(url)
    const headers = { ':method': init.method ?? 'GET', ':scheme': to.protocol.slice(0, -1), ':authority': to.host, ':path': to.pathname + to.search }
    for (const [name, value] of new Headers(init.headers)) headers[name] = value
    let stream
    try {
      stream = connected().request(headers, { endStream: init.body === undefined })
    } catch (error) {
      const isHeader = ['ERR_HTTP2_INVALID_CONNECTION_HEADERS', 'ERR_HTTP2_HEADER_SINGLE_VALUE'].includes(error.code)
      throw isHeader ? new Inexpressible(error.message) : error
    }
    const pieces = []
    const received = new Headers()
    let status
    stream.on('response', (head, flags, raw) => {
      status = head[':status']
      for (let at = 0; at < raw.length; at += 2) {
        if (!raw[at].startsWith(':')) received.append(raw[at], raw[at + 1])
      }
    })
    stream.on('data', piece => pieces.push(piece))
    stream.on('end', () => {
      if (status === undefined) reject(new TypeError('the stream ended without a response'))
      resolve({ status, headers: received, text: async () => Buffer.concat(pieces).toString() })
    })
    stream.on('error', reject)
    stream.on('close', () => reject(new TypeError(`the stream was closed: ${stream.rstCode}`)))
    init.signal?.addEventListener('abort', () => stream.destroy(new DOMException('aborted', 'AbortError')))
    if (init.body !== undefined) stream.end(init.body)
  })
}
if (protocol === 'http2') globalThis.fetch = fetchOverHttp2

// The suite also prints its results on the error stream.
console.error = () => {}
if (isNew) {
  await runTests(tests, false, base)
} else {
  const fetch = protocol === 'http2' ? fetchOverHttp2 : createRequire(path.join(suite, 'package.json'))('node-fetch')
  await runTests(tests, fetch, false, base)
}

// `determineTestResult` returns a list; its third element is a symbol for terminals, which these names replace.
const names = {
  '✅': 'pass', '⛔️': 'fail', '⚠️': 'fail', Y: 'yes', N: 'no', '🔹': 'setup', '⁉️': 'harness', '⚪️': 'dependency', '↻': 'retry', '-': 'untested'
}
const results = getResults()
const rows = []
for (const group of tests) {
  for (const test of group.tests) {
    if (test.browser_only === true) continue
    const symbol = determineTestResult(tests, test.id, results)[2]
    const failed = (test.depends_on ?? []).filter(id => !['pass', 'yes'].includes(names[determineTestResult(tests, id, results)[2]]))
    const [error, detail] = Array.isArray(results[test.id]) ? results[test.id].map(String) : ['', '']
    const result = error === 'Inexpressible' ? 'inexpressible' : names[symbol] ?? symbol
    rows.push({ id: test.id, group: group.name, name: test.name, kind: test.kind ?? 'required', result, failed, detail })
  }
}
const about = JSON.parse(fs.readFileSync(path.join(suite, 'package.json'), 'utf8'))
fs.writeFileSync(out, JSON.stringify({ version: about.version, layout: isNew ? 'repository' : 'package', rows }))
process.exit(0)
