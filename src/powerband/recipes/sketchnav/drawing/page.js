"use strict";
// Colours and sizes of powerband.recipes.sketchnav.plans.sketch.
const START = "rgb(30,80,230)", GOAL = "rgb(150,40,190)", PATH = "rgb(225,40,40)", INK = "rgb(20,20,20)";
const DOT = 13, SIDE = 512, STEP_MS = 60;
const element = (id) => document.getElementById(id);
const [under, sketch, over, world] = ["under", "sketch", "over", "world"].map((id) => element(id).getContext("2d"));
let plans = [], plan = null, image = null, tool = "wall", last = null, walking = 0, photo = null;
let dots = {}, places = {}, toScale = true, trail = [];

function report(text) { element("status").textContent = text; }

async function ask(path, body) {
  const answer = await fetch(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
  const content = await answer.json();
  if (content.error) throw new Error(content.error);
  return content;
}

const toPage = ([x, y]) => [x * plan.scale + plan.shift[0], y * plan.scale + plan.shift[1]];
const toMetres = ([x, y]) => [(x - plan.shift[0]) / plan.scale, (y - plan.shift[1]) / plan.scale];

function circle(canvas, [x, y], colour, radius) {
  canvas.fillStyle = colour;
  canvas.beginPath(); canvas.arc(x, y, radius, 0, 7); canvas.fill();
}

function line(canvas, points, colour, width) {
  canvas.strokeStyle = colour; canvas.lineWidth = width; canvas.lineCap = canvas.lineJoin = "round";
  canvas.beginPath(); points.forEach(([x, y]) => canvas.lineTo(x, y)); canvas.stroke();
}

function drawPlan(canvas) {
  canvas.clearRect(0, 0, SIDE, SIDE);
  const [left, top] = toPage([0, 0]), [right, bottom] = toPage(plan.size);
  canvas.imageSmoothingEnabled = false;
  canvas.drawImage(image, left, top, right - left, bottom - top);
}

function drawWorld() {
  drawPlan(world);
  if (trail.length > 1) line(world, trail.map((state) => toPage(state.at)), "rgb(20,120,255)", 3);
  if (places.start) circle(world, toPage(places.start), START, 7);
  if (places.goal) circle(world, toPage(places.goal), GOAL, 7);
  const state = trail[trail.length - 1];
  if (state) {
    const [x, y] = toPage(state.at), turned = (side, ahead) =>
      [x + ahead * Math.cos(state.heading) - side * Math.sin(state.heading),
       y + ahead * Math.sin(state.heading) + side * Math.cos(state.heading)];
    line(world, [turned(0, 12), turned(7, -6), turned(-7, -6), turned(0, 12)], "rgb(255,120,0)", 4);
  }
}

function drawDots() {
  over.clearRect(0, 0, SIDE, SIDE);
  if (dots.start) circle(over, dots.start, START, DOT);
  if (dots.goal) circle(over, dots.goal, GOAL, DOT);
  const state = trail[trail.length - 1];
  if (state && state.estimate) circle(over, state.estimate.map((share) => share * SIDE), "rgb(255,120,0)", 5);
}

function clear() {
  sketch.fillStyle = "#fff"; sketch.globalCompositeOperation = "source-over";
  sketch.clearRect(0, 0, SIDE, SIDE);
  dots = {}; places = {}; toScale = true; trail = []; photo = null; element("photo").value = "";
  drawDots(); drawWorld();
}

function choose(name) {
  walking += 1;
  plan = plans.find((each) => each.name === name);
  image = new Image();
  image.onload = () => { drawPlan(under); clear(); };
  image.src = plan.image;
}

function putDot(name, at) {
  dots[name] = at;
  if (toScale || !places[name]) places[name] = toMetres(at);
  drawDots(); drawWorld();
}

function position(event) {
  const box = event.target.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function stroke(to) {
  sketch.globalCompositeOperation = tool === "erase" ? "destination-out" : "source-over";
  line(sketch, [last, to], tool === "path" ? PATH : INK, tool === "erase" ? 24 : tool === "path" ? 4 : 5);
  last = to;
}

element("sketch").addEventListener("pointerdown", (event) => {
  const at = position(event);
  if (tool === "start" || tool === "goal") return putDot(tool, at);
  last = at; stroke(at);
});
element("sketch").addEventListener("pointermove", (event) => { if (last && event.buttons) stroke(position(event)); });
addEventListener("pointerup", () => { last = null; });

// A press on the plan moves the start if the tool is the start dot, else the goal.
element("world").addEventListener("pointerdown", (event) => {
  places[tool === "start" ? "start" : "goal"] = toMetres(position(event));
  toScale = false;
  drawWorld();
});

element("tools").addEventListener("click", (event) => {
  if (!event.target.dataset.tool) return;
  tool = event.target.dataset.tool;
  for (const button of element("tools").children) button.classList.toggle("chosen", button === event.target);
});
element("walls").addEventListener("click", () => {
  sketch.globalCompositeOperation = "source-over";
  for (const [x0, y0, x1, y1] of plan.walls) line(sketch, [toPage([x0, y0]), toPage([x1, y1])], INK, 5);
});
element("clear").addEventListener("click", clear);
element("show").addEventListener("change", (event) => { element("under").hidden = !event.target.checked; });
element("plan").addEventListener("change", (event) => choose(event.target.value));

// A photograph becomes black strokes on white: it is scaled to the page, and dark pixels become ink.
function threshold() {
  if (!photo) return;
  const page = document.createElement("canvas").getContext("2d");
  page.canvas.width = page.canvas.height = SIDE;
  const scale = SIDE / Math.max(photo.width, photo.height), width = photo.width * scale, height = photo.height * scale;
  page.fillStyle = "#fff"; page.fillRect(0, 0, SIDE, SIDE);
  page.drawImage(photo, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
  const pixels = page.getImageData(0, 0, SIDE, SIDE), data = pixels.data, limit = Number(element("threshold").value);
  for (let at = 0; at < data.length; at += 4) {
    const dark = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2] < limit;
    data[at] = data[at + 1] = data[at + 2] = 20; data[at + 3] = dark ? 255 : 0;
  }
  sketch.putImageData(pixels, 0, 0);
}

// Otsu 1979: the threshold that separates two classes of grey values best.
function otsu(picture) {
  const small = document.createElement("canvas").getContext("2d");
  small.canvas.width = small.canvas.height = 128;
  small.drawImage(picture, 0, 0, 128, 128);
  const data = small.getImageData(0, 0, 128, 128).data, counts = new Array(256).fill(0);
  for (let at = 0; at < data.length; at += 4)
    counts[Math.round(0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2])] += 1;
  const all = 128 * 128, sum = counts.reduce((total, count, grey) => total + grey * count, 0);
  let below = 0, belowSum = 0, best = 128, most = -1;
  for (let grey = 0; grey < 255; grey += 1) {
    below += counts[grey]; belowSum += grey * counts[grey];
    if (!below || below === all) continue;
    const apart = belowSum / below - (sum - belowSum) / (all - below);
    const between = below * (all - below) * apart * apart;
    if (between > most) { most = between; best = grey + 1; }
  }
  return best;
}

element("photo").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  try {
    photo = await createImageBitmap(file);
  } catch { return report("This file is not a picture."); }
  if (Math.max(photo.width, photo.height) > 16384) { photo = null; return report("The picture is too large."); }
  element("threshold").value = otsu(photo);
  threshold();
  toScale = false; element("show").checked = false; element("under").hidden = true;
  report("Put the start and goal dots on the photograph, then the true places on the plan.");
});
element("threshold").addEventListener("input", threshold);

// The page that the agent sees: the sketch on white, and the dots.
function finished() {
  const page = document.createElement("canvas").getContext("2d");
  page.canvas.width = page.canvas.height = SIDE;
  page.fillStyle = "#fff"; page.fillRect(0, 0, SIDE, SIDE);
  page.drawImage(sketch.canvas, 0, 0);
  circle(page, dots.start, START, DOT); circle(page, dots.goal, GOAL, DOT);
  return page.canvas.toDataURL("image/png");
}

async function walk() {
  if (!dots.start || !dots.goal) return report("Put the start dot and the goal dot on the sketch first.");
  const own = walking += 1;
  const body = { plan: plan.name, policy: element("policy").value, start: places.start, goal: places.goal,
                 sketch: finished() };
  try {
    trail = [await ask("start", body)];
    while (own === walking) {
      const state = trail[trail.length - 1];
      element("camera").src = state.camera;
      drawWorld(); drawDots();
      report(state.result || `Step ${state.steps}, ${state.distance.toFixed(1)} m to the goal`);
      if (state.result) break;
      await new Promise((resume) => setTimeout(resume, STEP_MS));
      if (own === walking) trail.push(await ask("step", {}));
    }
  } catch (error) { report(error.message); }
}
element("start").addEventListener("click", walk);
element("stop").addEventListener("click", () => { walking += 1; report("Stopped."); });

ask("plans").then((found) => {
  plans = found;
  for (const each of plans) element("plan").add(new Option(each.name, each.name));
  choose(plans[0].name);
}).catch((error) => report(error.message));
