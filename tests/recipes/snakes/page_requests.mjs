// Runs the script of the page without a browser: a button that is pressed while a move is in flight must not be lost.
import { readFileSync } from "node:fs"

const script = readFileSync(process.argv[2], "utf8")
const pen = new Proxy({}, { get: () => () => {}, set: () => true })
const elements = {}, listeners = {}, requests = [], answers = []
const position = { beans: [], bodies: [], human: [0], scores: [0, 0, 0, 0, 0, 0], result: null, step_count: 0 }
const scope = {
  document: {
    getElementById: id => elements[id] ||= { getContext: () => pen }, body: { dataset: { movesPerS: "0" } }, hidden: false,
  },
  navigator: { language: "en" },
  addEventListener: (name, listener) => { listeners[name] = listener },
  fetch: action => { requests.push(action); return new Promise(done => answers.push(done)) },
}
new Function(...Object.keys(scope), script)(...Object.values(scope))
const settle = () => new Promise(done => setTimeout(done, 5))
const answer = async () => { answers.shift()({ ok: true, json: async () => position }); await settle() }

await settle()
await answer()  // state
const press = code => listeners.keydown({ code, preventDefault() {} })
press("ArrowUp"); press("ArrowDown"); await settle()  // the second does not pile up
elements.new.onclick(); await settle()
await answer()  // move
await answer()  // new
press("ArrowUp"); await settle()
elements.quit.onclick(); await settle()
await answer()  // move
await answer()  // quit
press("ArrowUp"); await settle()  // after the end
console.log(JSON.stringify({ requests, state: elements.state.textContent }))
