// The map view: which network, which two knobs, where the dot is; all of it in the address.
import { ask, json, newest } from "./api.js";
import { showCurves, showFixes, showVerdict, showWaiting } from "./card.js";
import { $, element } from "./draw.js";
import { drawScale, message, Plane } from "./plane.js";

const COARSE = 12, FINE = 64, EVERY = 50; // milliseconds between two questions of a drag
const state = { source: null, network: null, x: null, y: null, at: null };
const askPoint = newest(), askFix = newest(), askNetwork = newest();
let mapOf = 0, lastAsked = 0, waitingPoint = null, answer = null;
const plane = new Plane((at, settled) => moved(at, settled));

const digits = (value) => +value.toPrecision(4);
const axisOf = (knob) => state.network.axes.find((axis) => axis.knob === knob);
const wanted = (at) => ({ source: state.source, knobs: { [state.x.knob]: at.x, [state.y.knob]: at.y } });
const home = () => ({ x: state.x.value, y: state.y.value });

// ---- the address
function remember() {
  const query = new URLSearchParams();
  if (state.source?.preset) query.set("preset", state.source.preset);
  if (state.source?.depth) query.set("depth", state.source.depth);
  if (state.source?.tokens) query.set("tokens", state.source.tokens);
  if (state.network) {
    for (const axis of ["x", "y"]) query.set(axis, state[axis].knob);
    if (state.at.x !== home().x || state.at.y !== home().y) query.set("at", `${state.at.x},${state.at.y}`);
  }
  history.replaceState(null, "", `${location.pathname}?${query}`);
}

function recall() {
  const query = new URLSearchParams(location.search);
  const whole = (name) => (/^\d{1,6}$/.test(query.get(name) ?? "") ? +query.get(name) : null);
  const at = (query.get("at") ?? "").split(",").map(Number);
  return {
    source: query.get("preset") ? { preset: query.get("preset"), depth: whole("depth"), tokens: whole("tokens") } : null,
    knobs: { x: query.get("x"), y: query.get("y") },
    at: at.length === 2 && at.every(Number.isFinite) ? { x: at[0], y: at[1] } : null,
  };
}

// ---- a network
async function open(source, knobs = {}, at = null) {
  $("progress").hidden = true;
  let network;
  try {
    network = await askNetwork("network", source);
  } catch (error) {
    return refused(error.message, source.name ?? source.preset);
  }
  if (!network) return;
  Object.assign(state, { source, network });
  const names = network.axes.map((axis) => axis.knob);
  const choice = (name, otherwise) => axisOf(names.includes(name) ? name : otherwise);
  state.x = choice(knobs.x, names[0]);
  state.y = choice(knobs.y !== state.x.knob ? knobs.y : null, names.find((name) => name !== state.x.knob));
  state.at = at ?? home();
  $("state").hidden = true;
  fillPanel();
  await replane();
}

function fillPanel() {
  const { network } = state;
  $("note").textContent = network.note;
  for (const axis of ["x", "y"]) {
    const select = $(`${axis}-knob`), other = axis === "x" ? state.y : state.x;
    select.replaceChildren(...network.axes.filter(({ knob }) => knob !== other.knob).map(({ knob, label }) => element("option", { value: knob, textContent: knob, title: label })));
    select.value = state[axis].knob;
    $(`${axis}-value`).setAttribute("aria-label", `${state[axis].label}, ${state[axis].knob}`);
  }
  for (const name of ["depth", "tokens"]) $(name).value = network[name];
  for (const id of ["x-knob", "y-knob", "x-value", "y-value", "depth", "tokens", "home"]) $(id).disabled = false;
  if (state.source.preset) $("preset").value = state.source.preset;
}

// New axes: the exact verdict first, then a coarse map, then the fine one.
async function replane() {
  const mine = ++mapOf;
  plane.place({ x: state.x, y: state.y }, state.at, home());
  plane.move(state.at, true);
  const request = { source: state.source, points: COARSE };
  for (const axis of ["x", "y"]) request[axis] = { knob: state[axis].knob, low: state[axis].low, high: state[axis].high };
  try {
    for (const points of [COARSE, FINE]) {
      progress(points === COARSE ? "drawing a coarse map" : `coarse map, ${COARSE} × ${COARSE} · refining`);
      const map = await json("map", { ...request, points });
      if (mine !== mapOf) return;
      plane.show(map, points === COARSE);
      $("caption").textContent = map.caption;
    }
    progress("");
    settle();
  } catch (error) {
    if (mine === mapOf) refused(error.message, state.network.name);
  }
}

function progress(words) {
  $("progress").textContent = words;
  $("progress").hidden = !words;
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
    showCurves(answer.curves, null);
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
  setTimeout(() => here === state.at && ($("live").textContent = `${answer.outcome}. ${answer.chance}`), 400);
  const detail = await askFix("point", { ...wanted(here), fixes: true });
  if (!detail || here !== state.at) return;
  const rows = detail.fixes.rows.map((row) => ({ ...row, act: onMap(row.knobs) }));
  let after = null;
  if (fix) {
    const there = await json("point", wanted(fix));
    if (here !== state.at) return;
    after = there.curves;
    const knobs = [["x", state.x], ["y", state.y]].filter(([axis]) => fix[axis] !== here[axis]).map(([axis, { knob }]) => `${knob} = ${digits(fix[axis])}`);
    rows.unshift({ change: knobs.join(", "), note: "nearest on the map", then: there.then, kind: there.kind, act: () => plane.move(fix, true) });
  }
  const healthy = detail.fixes.healthy && !rows.length;
  showFixes(healthy ? "Nothing to fix. Room on this map" : "Fixes", healthy ? room(here) : rows, detail.fixes.advice);
  showCurves(detail.curves, after);
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
  mapOf++;
  progress("");
  Object.assign(plane, { map: null, axes: null, at: null });
  Object.assign(state, { network: null });
  answer = null;
  plane.draw();
  for (const id of ["x-knob", "y-knob", "x-value", "y-value", "depth", "tokens", "home"]) $(id).disabled = true;
  const again = element("button", { type: "button", textContent: "Choose another file", onclick: () => $("file").click() });
  const preset = element("button", { type: "button", textContent: "Start from gpt2", onclick: () => open({ preset: "gpt2" }) });
  message("error", "This cannot be shown", words, again, preset);
  showWaiting(name, "No verdict", "The last picture was removed, because it was of another model.");
}

function empty() {
  plane.draw();
  const start = element("button", { type: "button", textContent: "Start with the default transformer", onclick: () => open({ preset: "transformer" }) });
  message("", "Put your model on the map", "Drop its config.json here, or choose a preset. Nothing is uploaded; the page works without a network.", start);
  showWaiting("no model yet", "Waiting for a model", "The verdict, its fixes and three curves appear here.");
}

async function take(file) {
  if (!file) return;
  if (file.size > 200_000) return refused(`${file.name} has ${file.size} bytes; a config has at most 200\u2009000.`, file.name);
  for (const old of $("preset").querySelectorAll("[data-file]")) old.remove();
  const option = element("option", { value: "", textContent: file.name });
  option.dataset.file = file.name;
  $("preset").prepend(option);
  $("preset").selectedIndex = 0;
  await open({ config: await file.text(), name: file.name });
}

// ---- controls
$("preset").addEventListener("change", () => ($("preset").value ? open({ preset: $("preset").value }) : empty()));
$("file").addEventListener("change", () => take($("file").files[0]).then(() => ($("file").value = "")));
for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
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
for (const name of ["depth", "tokens"]) $(name).addEventListener("change", () => {
  const value = $(name).valueAsNumber;
  if (Number.isInteger(value)) open({ ...state.source, depth: state.source.depth, tokens: state.source.tokens, [name]: value }, { x: state.x.knob, y: state.y.knob });
});
$("home").addEventListener("click", () => plane.move(home(), true));
$("code-button").addEventListener("click", () => {
  $("code").hidden = !$("code").hidden;
  $("code-button").setAttribute("aria-expanded", String(!$("code").hidden));
});
$("report").addEventListener("click", async () => {
  try {
    const page = await (await ask("report", wanted(state.at))).blob();
    const link = element("a", { href: URL.createObjectURL(page), download: "report.html" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    $("live").textContent = error.message;
  }
});

if (matchMedia("(max-width: 760px)").matches) document.querySelector(".fold").open = false;
drawScale();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawScale);
new ResizeObserver(drawScale).observe(document.querySelector(".centre"));
try {
  const { presets } = await json("catalogue");
  $("preset").append(...presets.map((name) => element("option", { value: name, textContent: name })));
  const { source, knobs, at } = recall();
  if (source) await open(source, knobs, at);
  else empty();
} catch (error) {
  refused(error.message, "");
}
