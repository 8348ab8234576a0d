const moves_per_s = Number(document.body.dataset.movesPerS), CELL = 48
const COLOURS = ["#185cad", "#3485dc", "#70b2f5", "#be3f1a", "#e56730", "#f79b62"]
const KEYS = {
  ArrowUp: [0, 0], ArrowDown: [0, 1], ArrowLeft: [0, 2], ArrowRight: [0, 3],
  KeyW: [1, 0], KeyS: [1, 1], KeyA: [1, 2], KeyD: [1, 3], KeyI: [2, 0], KeyK: [2, 1], KeyJ: [2, 2], KeyL: [2, 3],
}
const CHINESE = {
  "New game": "重新开始", Pause: "暂停", "Go on": "继续", Quit: "结束", you: "你", policy: "策略", won: "你赢了", lost: "你输了",
  drawn: "平局", "arrow keys": "方向键", "arrow keys, WASD, IJKL": "方向键、WASD、IJKL 各控制一条蛇", move: "第", ended: "已结束，可以关闭本页"
}
const text = word => navigator.language.startsWith("zh") ? CHINESE[word] || word : word
const find = id => document.getElementById(id)
let position = null, wanted = {}, paused = false, busy = 0, ended = false, last = Promise.resolve()

function ask(action, body = {}) {  // after the requests before it
  busy += 1
  last = last.then(() => send(action, body)).finally(() => busy -= 1)
  return last
}

async function send(action, body) {
  if (ended) return
  try {
    const answer = await fetch(action, { method: "POST", body: JSON.stringify(body) })
    if (answer.ok) { position = await answer.json(); draw() }
  } catch { ended = true }
}

function draw() {
  const pen = find("board").getContext("2d")
  pen.clearRect(0, 0, 960, 480)
  pen.fillStyle = "#5e9e42"
  for (const [row, col] of position.beans) disc(pen, row, col, .26)
  position.bodies.forEach((body, snake) => body.forEach(([row, col], k) => {
    pen.fillStyle = COLOURS[snake]
    disc(pen, row, col, k ? .4 - .15 * k / Math.max(6, body.length) : .48)
    if (k) return
    pen.fillStyle = "#fff"
    disc(pen, row, col, position.human.includes(snake) ? .26 : .12)
  }))
  const sum = values => values.reduce((total, value) => total + value, 0)
  const result = position.result
  const own = result ? result.score : sum(position.scores.slice(0, 3))
  const other = result ? result.opponent_score : sum(position.scores.slice(3))
  find("score").textContent = `${text("you")} ${own} : ${other} ${text("policy")}`
  const keys = position.human.length > 1 ? "arrow keys, WASD, IJKL" : "arrow keys"
  find("state").textContent = result ? text(result.outcome) : `${position.step_count} / 200   ${text(keys)}`
  document.body.dataset.step = position.step_count
}

function disc(pen, row, col, radius) {
  pen.beginPath()
  pen.arc((col + .5) * CELL, (row + .5) * CELL, radius * CELL, 0, 7)
  pen.fill()
}

function move() {
  if (busy || paused || document.hidden || !position || position.result) return
  ask("move", { wanted })
  wanted = {}
}

addEventListener("keydown", event => {
  const found = KEYS[event.code]
  if (!found || !position) return
  event.preventDefault()
  wanted[position.human[Math.min(found[0], position.human.length - 1)]] = found[1]
  if (!moves_per_s) move()
})
for (const name of ["New game", "Pause", "Quit"]) find(name.split(" ")[0].toLowerCase()).textContent = text(name)
find("new").onclick = () => ask("new")
find("pause").onclick = () => { paused = !paused; find("pause").textContent = text(paused ? "Go on" : "Pause") }
find("quit").onclick = async () => { await ask("quit"); ended = true; find("state").textContent = text("ended") }
if (moves_per_s) setInterval(move, 1000 / moves_per_s)
ask("state")
