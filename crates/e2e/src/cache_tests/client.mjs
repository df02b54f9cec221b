// Runs the suite's own client against one base URL, and writes the results as the suite's own code judges them.
//
//   node client.mjs SUITE BASE OUT
//
// SUITE is the folder of the suite, as npm installs it. It can have one of two layouts: that of the package, or the newer
// one of the repository (`test-engine`). The suite's own runner leaves out browser-only tests.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [suite, base, out] = process.argv.slice(2)
const isNew = fs.existsSync(path.join(suite, 'test-engine'))
const load = (name) => import(pathToFileURL(path.join(suite, isNew ? 'test-engine' : '.', name)))
const tests = (await import(pathToFileURL(path.join(suite, 'tests/index.mjs')))).default
const { runTests, getResults } = await load('client/runner.mjs')
const { determineTestResult } = await load(isNew ? 'lib/results.mjs' : 'lib/display.mjs')

// The suite also prints its results on the error stream.
console.error = () => {}
if (isNew) {
  await runTests(tests, false, base)
} else {
  const fetch = createRequire(path.join(suite, 'package.json'))('node-fetch')
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
    const detail = Array.isArray(results[test.id]) ? String(results[test.id][1]) : ''
    rows.push({ id: test.id, group: group.name, name: test.name, kind: test.kind ?? 'required', result: names[symbol] ?? symbol, failed, detail })
  }
}
const about = JSON.parse(fs.readFileSync(path.join(suite, 'package.json'), 'utf8'))
fs.writeFileSync(out, JSON.stringify({ version: about.version, layout: isNew ? 'repository' : 'package', rows }))
process.exit(0)
