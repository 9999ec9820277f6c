// node check.js DASHBOARD.json…: are these what Grafana's own types take, down to the options of each panel?
const fs = require('fs')
const path = require('path')
const ts = require('typescript')

const raw = path.join(__dirname, 'node_modules/@grafana/schema/dist/esm/raw')
const of = { timeseries: 'TimeSeries', heatmap: 'Heatmap', stat: 'Stat', bargauge: 'BarGauge', table: 'Table' } // traces has no types
const drawn = ['timeseries', 'heatmap', 'table'] // have a drawing of their own beside their options

let text = `import type { Dashboard } from '@grafana/schema'
type Loose<T> = T extends string ? string : T extends number ? number : T extends boolean ? boolean
  : T extends (infer U)[] ? Loose<U>[] : T extends object ? { [K in keyof T]?: Loose<T[K]> } : T // JSON has no enums, and leaves out what is usual\n`
for (const [kind, name] of Object.entries(of)) {
  text += `import type * as ${kind} from '${raw}/composable/${kind}/panelcfg/x/${name}PanelCfg_types.gen'\n`
}
process.argv.slice(2).forEach((file, f) => {
  const board = JSON.parse(fs.readFileSync(file, 'utf8'))
  text += `const board${f}: Dashboard = ${JSON.stringify(board)} // ${path.basename(file)}\n`
  board.panels.filter(p => of[p.type]).forEach(p => {
    text += `const options${f}_${p.id}: Loose<${p.type}.Options> = ${JSON.stringify(p.options)} // ${path.basename(file)}, ${p.title}\n`
    if (drawn.includes(p.type)) text += `const field${f}_${p.id}: Loose<${p.type}.FieldConfig> = ${JSON.stringify(p.fieldConfig.defaults.custom || {})}\n`
  })
})
const source = path.join(__dirname, 'check.ts')
fs.writeFileSync(source, text)
const program = ts.createProgram([source], { strict: true, noEmit: true, skipLibCheck: true, target: ts.ScriptTarget.ES2020, moduleResolution: ts.ModuleResolutionKind.Node10, types: [] })
const wrong = ts.getPreEmitDiagnostics(program)
const lines = text.split('\n')
for (const d of wrong) {
  const { line } = d.file.getLineAndCharacterOfPosition(d.start)
  console.log(`${lines[line].slice(0, 60)} … ${lines[line].split('//').pop()}: ${ts.flattenDiagnosticMessageText(d.messageText, ' ')}`)
}
process.exit(wrong.length ? 1 : 0)
