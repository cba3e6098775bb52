// The map: the phase diagram of a network over two knobs, with the network as a dot on it; all of it in the address.
import { ask, follow, json, newest, save } from "../api.js";
import { showCurves, showFixes, showVerdict, showWaiting } from "../card.js";
import { why } from "../chart.js";
import { $, element, fragment, whenChanged } from "../draw.js";
import { ModelPanel, pickFile, sourceOf, stateOf } from "../model.js";
import { drawScale, message, Plane } from "../plane.js";
import { Progress } from "../progress.js";

export const title = "Map";
const COARSE = 12, FINE = 64, EVERY = 50; // milliseconds between two questions of a drag
const KNOBS = `<div class="group">
  <label class="label" for="x-knob">Across</label>
  <div class="pair"><select id="x-knob" disabled></select><input id="x-value" type="number" step="any" disabled aria-label="Value across"></div>
  <label class="label" for="y-knob">Up</label>
  <div class="pair"><select id="y-knob" disabled></select><input id="y-value" type="number" step="any" disabled aria-label="Value up"></div>
</div>`;
const PICTURE = `<div class="centre">
  <figure class="plot">
    <div class="plotbox" id="plotbox">
      <canvas id="heat" aria-hidden="true"></canvas>
      <svg id="over" role="group" aria-label="Phase diagram"></svg>
      <div class="state" id="state" hidden></div>
    </div>
    <div class="scale" id="scale" aria-hidden="true"></div>
    <figcaption><p><span id="caption">Each point is a network that differs from yours in two knobs. Color is the share of such networks that trained.</span> </p></figcaption>
  </figure>
</div>
<aside class="card" id="card" aria-label="Verdict">
  <p class="meta" id="meta">no model yet</p>
  <h1 class="outcome" id="outcome">Waiting for a model</h1>
  <div class="words">
    <p class="chance" id="chance">The verdict, its fixes and three curves appear here.</p>
    <p class="say" id="say"></p>
  </div>
  <h2 id="fixes-title">Fixes</h2>
  <ul class="fixes" id="fixes"></ul>
  <h2 id="curves-title">Through the blocks</h2>
  <div class="curves" id="curves"></div>
  <div class="actions">
    <button type="button" class="primary" id="code-button" aria-expanded="false" aria-controls="code">Code</button>
    <button type="button" id="simulate" aria-pressed="false">Simulate</button>
    <button type="button" id="report">Report</button>
  </div>
  <p class="hint" id="drawn-note"></p>
  <pre id="code" hidden tabindex="0" aria-label="Code for this point"></pre>
  <p class="sr" aria-live="polite" id="live"></p>
</aside>`;

let state, plane, panel, store, askPoint, askFix, askNetwork, mapOf, lastAsked, waitingPoint, answer, ended, askDrawn, drawn, shownCurves, askMap, progress, stream;

const digits = (value) => +value.toPrecision(4);
const axisOf = (knob) => state.network.axes.find((axis) => axis.knob === knob);
const wanted = (at) => ({ source: state.source, knobs: { [state.x.knob]: at.x, [state.y.knob]: at.y } });
const home = () => ({ x: state.x.value, y: state.y.value });

export async function open(root, address, setState) {
  const stop = (ended = new AbortController());
  const { signal } = stop;
  state = { source: null, network: null, x: null, y: null, at: null };
  [askPoint, askFix, askNetwork] = [newest(signal), newest(signal), newest(signal)];
  [mapOf, lastAsked, waitingPoint, answer, store] = [0, 0, null, null, setState];
  [askDrawn, askMap, drawn, stream] = [newest(signal), newest(signal), null, null];
  progress = new Progress("progress");
  const back = element("button", { className: "plain", id: "home", type: "button", disabled: true, onclick: () => plane.move(home(), true) }, "Back to your model ", element("kbd", { textContent: "Home" }));
  panel = new ModelPanel({ choose: (source) => (source ? choose(source, kept(source)) : empty()), refuse: refused, signal, between: [fragment(KNOBS)], after: [back] });
  root.append(panel.element, fragment(PICTURE));
  $("plotbox").append(progress.element);
  root.querySelector("figcaption p").append(why("transformers-forward"));
  plane = new Plane((at, settled) => moved(at, settled), signal);
  controls();
  drawScale();
  whenChanged(root.querySelector(".centre"), drawScale, signal);
  start(address, stop);
  return () => {
    stop.abort();
    stream?.abort();
    clearTimeout(waitingPoint);
    state = { at: null };
    mapOf++;
  };
}

async function start(address, mine) {
  try {
    await panel.fill();
    const source = sourceOf(address), at = (address.at ?? "").split(",").map(Number);
    if (mine.signal.aborted) return;
    if (source) await choose(source, { x: address.x, y: address.y }, at.length === 2 && at.every(Number.isFinite) ? { x: at[0], y: at[1] } : null);
    else empty();
  } catch (error) {
    if (!mine.signal.aborted) refused(error.message, "");
  }
}

function remember() {
  const keys = { ...stateOf(state.source), x: state.x.knob, y: state.y.knob };
  if (state.at.x !== home().x || state.at.y !== home().y) keys.at = `${state.at.x},${state.at.y}`;
  store(keys);
}

// ---- a network
const kept = (source) => (state.x && source.preset === state.source?.preset && source.name === state.source?.name ? { x: state.x.knob, y: state.y.knob } : {});

async function choose(source, knobs = {}, at = null) {
  const mine = ended;
  progress.hide();
  let network;
  try {
    network = await askNetwork("network", source);
  } catch (error) {
    return mine.signal.aborted ? null : refused(error.message, source.name ?? source.preset);
  }
  if (!network || mine.signal.aborted) return;
  Object.assign(state, { source, network });
  const names = network.axes.map((axis) => axis.knob);
  const choice = (name, otherwise) => axisOf(names.includes(name) ? name : otherwise);
  state.x = choice(knobs.x, names[0]);
  state.y = choice(knobs.y !== state.x.knob ? knobs.y : null, names.find((name) => name !== state.x.knob));
  state.at = at ?? home();
  $("state").hidden = true;
  if (!answer) showWaiting(network.name, "Following the model", "Its verdict comes first, then the map.");
  fillPanel();
  await replane();
}

function fillPanel() {
  const { network } = state;
  panel.show(state.source, network);
  for (const axis of ["x", "y"]) {
    const select = $(`${axis}-knob`), other = axis === "x" ? state.y : state.x;
    select.replaceChildren(...network.axes.filter(({ knob }) => knob !== other.knob).map(({ knob, label }) => element("option", { value: knob, textContent: knob, title: label })));
    select.value = state[axis].knob;
    $(`${axis}-value`).setAttribute("aria-label", `${state[axis].label}, ${state[axis].knob}`);
  }
  for (const id of ["x-knob", "y-knob", "x-value", "y-value", "home"]) $(id).disabled = false;
}

// New axes: the exact verdict first, then a coarse map, then the fine one, then the one with mask and positions.
async function replane() {
  const mine = ++mapOf;
  stream?.abort();
  plane.place({ x: state.x, y: state.y }, state.at, home());
  plane.move(state.at, true);
  const request = { source: state.source };
  for (const axis of ["x", "y"]) request[axis] = { knob: state[axis].knob, low: state[axis].low, high: state[axis].high };
  try {
    for (const points of [COARSE, FINE]) {
      progress.show(points === COARSE ? "drawing a coarse map" : `coarse map, ${COARSE} × ${COARSE} · refining`);
      const map = await askMap("map", { ...request, points });
      if (mine !== mapOf || !map) return;
      show(map, points === COARSE);
    }
    progress.hide();
    settle();
    if (state.network.positions) withPositions(request, mine);
  } catch (error) {
    if (mine === mapOf) refused(error.message, state.network?.name ?? "");
  }
}

function show(map, coarse) {
  plane.show(map, coarse);
  $("caption").textContent = map.caption;
}

// Each of these points takes long: the picture becomes finer while it is looked at, until it is done or stopped.
async function withPositions(request, mine) {
  const stop = (stream = new AbortController()), again = ["Go on", () => withPositions(request, mine)];
  const tell = (done) => progress.show("adding mask and positions", { done, action: ["Cancel", () => stop.abort()] });
  let words = "";
  tell(0);
  try {
    await follow("map/positions", request, stop.signal, ({ done, map, stopped }) => {
      if (mine !== mapOf || stop.signal.aborted) return;
      if (done !== undefined) tell(done);
      if (map) show(map, false);
      words = stopped ?? "";
    });
  } catch (error) {
    words = error.name === "AbortError" ? "stopped before it was done" : error.message;
  }
  if (mine !== mapOf || ended.signal.aborted) return;
  if (words) progress.show(words, { action: again });
  else progress.hide();
  settle();
}

// ---- the dot
function moved(at, settled) {
  state.at = at;
  $("x-value").value = digits(at.x);
  $("y-value").value = digits(at.y);
  clearTimeout(waitingPoint);
  const now = performance.now(), wait = settled ? 0 : Math.max(0, EVERY - (now - lastAsked));
  waitingPoint = setTimeout(() => point(settled), wait);
  if (settled) remember();
}

async function point(settled) {
  const began = (lastAsked = performance.now());
  try {
    const next = await askPoint("point", wanted(state.at));
    if (!next) return;
    answer = next;
    showVerdict(answer, performance.now() - began);
    drawn = null;
    draw(answer.curves, null);
    plane.speak(`${state.x.knob} ${digits(state.at.x)}, ${state.y.knob} ${digits(state.at.y)}: ${answer.outcome}. ${answer.chance}`, answer.share);
    if (settled) await settle();
    else showFixes("Fixes", []);
  } catch (error) {
    refused(error.message, state.network?.name ?? "");
  }
}

// Once the dot rests: the fixes that the shell names, the nearest place on the map, and a word to the screen reader.
async function settle() {
  if (!answer) return;
  const here = state.at, fix = plane.fix();
  setTimeout(() => here === state.at && answer && ($("live").textContent = `${answer.outcome}. ${answer.chance}`), 400);
  const soon = setTimeout(() => here === state.at && showFixes("Fixes", [], "Looking for fixes …"), 300);
  let detail, there = null;
  try {
    detail = await askFix("point", { ...wanted(here), fixes: true });
    if (detail && fix) there = await json("point", wanted(fix), ended.signal);
  } catch (error) {
    if (error.name !== "AbortError" && here === state.at) showFixes("Fixes", [], error.message);
    return;
  } finally {
    clearTimeout(soon);
  }
  if (!detail || here !== state.at) return;
  const rows = detail.fixes.rows.map((row) => ({ ...row, act: onMap(row.knobs) }));
  if (there) {
    const knobs = [["x", state.x], ["y", state.y]].filter(([axis]) => fix[axis] !== here[axis]).map(([axis, { knob }]) => `${knob} = ${digits(fix[axis])}`);
    rows.unshift({ change: knobs.join(", "), note: "nearest on the map", then: there.then, kind: there.kind, act: () => plane.move(fix, true) });
  }
  const healthy = detail.fixes.healthy && !rows.length;
  showFixes(healthy ? "Nothing to fix. Room on this map" : "Fixes", healthy ? room(here) : rows, detail.fixes.advice);
  draw(detail.curves, there?.curves ?? null);
  if (simulating()) simulate();
}

function draw(curves, after) {
  shownCurves = [curves, after];
  showCurves(curves, after, drawn);
}

// A random network at the dot, as circles on the curves; asked for again wherever the dot rests.
const simulating = () => $("simulate").getAttribute("aria-pressed") === "true";

async function simulate() {
  const here = state.at;
  $("drawn-note").replaceChildren("drawing a random network ", element("progress", { ariaLabel: "Drawing a random network" }));
  $("simulate").textContent = "Cancel";
  try {
    const result = await askDrawn("simulate", wanted(here));
    if (result) $("simulate").textContent = "Simulate";
    if (!result || here !== state.at || !simulating()) return;
    drawn = result.curves;
    $("drawn-note").textContent = result.note;
    showCurves(...shownCurves, drawn);
  } catch (error) {
    $("simulate").textContent = "Simulate";
    if (here === state.at) $("drawn-note").textContent = error.message;
  }
}

// A remedy that only moves the knobs of this map is a place on it.
function onMap(knobs) {
  if (!knobs || !Object.keys(knobs).every((name) => [state.x.knob, state.y.knob].includes(name))) return null;
  return () => plane.move({ x: knobs[state.x.knob] ?? state.at.x, y: knobs[state.y.knob] ?? state.at.y }, true);
}

// Where nothing is wrong: how far each knob may grow until fewer than three in four train.
function room(at) {
  if (!plane.map || plane.coarse) return [];
  return ["x", "y"].map((axis) => {
    const { knob, high } = state[axis], probe = { ...at }, step = (high - at[axis]) / 200;
    while (step > 0 && probe[axis] < high && plane.share(probe) >= 0.75) probe[axis] += step;
    const free = step <= 0 || probe[axis] >= high;
    return { change: `${knob} up to ${digits(free ? high : probe[axis])}`, note: free ? "as far as the map goes" : `now ${digits(at[axis])}`, act: free ? null : () => plane.move({ ...probe, [axis]: digits(probe[axis]) }, true) };
  });
}

// ---- what went wrong
function refused(words, name) {
  clear();
  const again = element("button", { type: "button", textContent: "Choose another file", onclick: pickFile });
  const preset = element("button", { type: "button", textContent: "Start from gpt2", onclick: () => choose({ preset: "gpt2" }) });
  message("error", "This cannot be shown", words, again, preset);
  showWaiting(name, "No verdict", "The last picture was removed, because it was of another model.");
}

function clear() {
  mapOf++;
  stream?.abort();
  progress.hide();
  Object.assign(plane, { map: null, axes: null, at: null });
  Object.assign(state, { network: null, at: null }); // answers that are still on their way are of another model
  answer = null;
  plane.draw();
  panel.disable();
  for (const id of ["x-knob", "y-knob", "x-value", "y-value", "home"]) $(id).disabled = true;
}

function empty() {
  clear();
  const first = element("button", { type: "button", textContent: "Start with the default transformer", onclick: () => choose({ preset: "transformer" }) });
  message("", "Put your model on the map", "Drop its config.json or a saved trace here, or choose a preset. Nothing is uploaded; the page works without a network.", first);
  showWaiting("no model yet", "Waiting for a model", "The verdict, its fixes and three curves appear here.");
}

// ---- controls
function controls() {
  for (const axis of ["x", "y"]) {
    $(`${axis}-knob`).addEventListener("change", () => {
      const keep = state.at, other = axis === "x" ? "y" : "x";
      state[axis] = axisOf($(`${axis}-knob`).value);
      state.at = { ...home(), [other]: keep[other] };
      fillPanel();
      replane();
    });
    $(`${axis}-value`).addEventListener("change", () => {
      const value = $(`${axis}-value`).valueAsNumber;
      if (Number.isFinite(value)) plane.move({ ...state.at, [axis]: value }, true);
    });
  }
  $("code-button").addEventListener("click", () => {
    $("code").hidden = !$("code").hidden;
    $("code-button").setAttribute("aria-expanded", String(!$("code").hidden));
  });
  $("simulate").addEventListener("click", () => {
    $("simulate").setAttribute("aria-pressed", String(!simulating()));
    $("simulate").textContent = "Simulate";
    drawn = null;
    $("drawn-note").textContent = "";
    askDrawn.stop();
    if (simulating()) simulate();
    else if (shownCurves) showCurves(...shownCurves, null);
  });
  $("report").addEventListener("click", async () => {
    const { signal } = ended;
    $("report").disabled = true;
    try {
      save(await (await ask("report", wanted(state.at), signal)).blob(), "report.html");
    } catch (error) {
      if (!signal.aborted) $("drawn-note").textContent = error.message;
    }
    if (!signal.aborted) $("report").disabled = false;
  });
}
