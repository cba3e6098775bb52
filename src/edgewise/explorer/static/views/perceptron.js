// The perceptron: two maps with a staircase each, the plane of order and chaos, and a circle of inputs in a random network.
import { newest } from "../api.js";
import { axes, curve, why } from "../chart.js";
import { digits, figures, framed, Handles, layered, paced, readingCard, Sliders } from "../controls.js";
import { clamp, element, label, linear, node, polyline, whenChanged } from "../draw.js";
import { ground } from "../ground.js";

export const title = "Perceptron";
const NAMES = ["tanh", "erf", "relu", "leaky_relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "sigmoid", "softplus", "relu2", "sin", "linear"];
const TEMPO = 700; // milliseconds for a layer
const DIALS = [
  { knob: "weight_variance", key: "w", label: "weight variance", low: 0, high: 6, step: 0.01, home: 4 },
  { knob: "bias_variance", key: "b", label: "bias variance", low: 0, high: 1.5, step: 0.01, home: 0.05 },
  { knob: "length", key: "q", label: "mean square at the start", low: 0.05, high: 10, step: 0.05, home: 0.4 },
  { knob: "correlation", key: "c", label: "how alike at the start", low: 0, high: 1, step: 0.01, home: 0.95 },
];

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop, ask = newest(signal), askPlane = newest(signal), askCircle = newest(signal);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const numeric = (key, otherwise) => (address[key] !== undefined && address[key] !== "" && Number.isFinite(+address[key]) ? +address[key] : otherwise);
  const wanted = { activation: NAMES.includes(address.activation) ? address.activation : "tanh", seed: clamp(Math.round(numeric("seed", 0)), 0, 1e6) };
  for (const { knob, key, low, high, home } of DIALS) wanted[knob] = clamp(numeric(key, home), low, high);
  let layer = clamp(Math.round(numeric("layer", 16)), 0, 16), answer = null, plane = null, circle = null, timer = null;

  const select = element("select", { id: "activation" }, ...NAMES.map((name) => element("option", { value: name, textContent: name })));
  select.value = wanted.activation;
  select.addEventListener("change", () => { wanted.activation = select.value; replane(); question(true); });
  const sliders = new Sliders((knob, value, settled) => { wanted[knob] = value; question(settled); });
  const again = element("button", { className: "plain", type: "button", textContent: "Draw another random network", onclick: () => { wanted.seed = (wanted.seed + 1) % 1e6; recircle(true); } });
  const fold = element("details", { className: "fold", open: !matchMedia("(max-width: 760px)").matches }, element("summary", { textContent: "Network and inputs" }),
    element("div", { className: "group" }, element("label", { className: "label", htmlFor: "activation", textContent: "Activation" }), select), sliders.element, again);
  const panel = element("aside", { className: "panel" }, fold);
  panel.setAttribute("aria-label", "Network and inputs");

  const slide = element("input", { type: "range", id: "layer", min: 0, max: 16, step: 1, value: layer }), count = element("output", { htmlFor: "layer" });
  slide.addEventListener("input", () => step(+slide.value));
  slide.addEventListener("change", remember);
  const play = element("button", { type: "button", className: "primary", onclick: () => (still.matches ? step(layer === 16 ? 0 : layer + 1) : timer ? pause() : run()) });
  const bar = element("div", { className: "bar" }, play, element("label", { className: "label", htmlFor: "layer", textContent: "Layer" }), slide, count);

  const table = element("table", { className: "figures" });
  const card = readingCard("What the maps mean", element("h2", { textContent: "At this layer" }), table);
  const layers = { plane: layered(), circle: layered(), length: layered(), correlation: layered() };
  const pictures = {
    plane: framed("Order and chaos", layers.plane.host, why("perceptrons")), circle: framed("A circle of inputs", layers.circle.host, why("perceptrons")),
    length: framed("How large a signal is", layers.length.host, why("perceptrons")), correlation: framed("How alike two inputs are", layers.correlation.host, why("perceptrons")),
  };
  const centre = element("div", { className: "centre" }, bar, element("div", { className: "four" }, ...["plane", "circle", "length", "correlation"].map((name) => pictures[name].figure)));
  root.append(panel, centre, card.element);
  const handles = new Handles(layers.plane.host, [{ name: "your network", words: "Your network in the plane. Arrow keys move it, with Shift further." }], (_, at, settled) => {
    Object.assign(wanted, { weight_variance: at.x, bias_variance: at.y });
    question(settled);
  });
  for (const [name, { host }] of Object.entries(layers)) whenChanged(host, () => DRAW[name](), signal);

  const question = paced(async (settled) => {
    try {
      const next = await ask("perceptron", wanted);
      if (!next) return;
      answer = next;
      show();
      if (settled) remember();
      if (settled || !circle) await recircle(false);
    } catch (error) {
      card.stopped(error.message);
    }
  });

  async function replane() {
    try {
      plane = (await askPlane("perceptron/plane", { activation: wanted.activation })) ?? plane;
      DRAW.plane();
    } catch (error) { card.stopped(error.message); }
  }

  async function recircle(store) {
    try {
      circle = (await askCircle("perceptron/circle", wanted)) ?? circle;
      if (store) remember();
      DRAW.circle();
      tell();
    } catch (error) { card.stopped(error.message); }
  }

  function show() {
    sliders.show(DIALS.map((dial) => ({ ...dial, value: wanted[dial.knob] })));
    card.show(answer.name, answer.title, answer.sentences);
    for (const [name, words] of Object.entries(answer.captions)) pictures[name].say(words);
    handles.set("your network", { x: wanted.weight_variance, y: wanted.bias_variance }, `weight variance ${digits(wanted.weight_variance)}, bias variance ${digits(wanted.bias_variance)}: ${answer.title}`, wanted.weight_variance / 6);
    for (const name of ["plane", "length", "correlation"]) DRAW[name]();
    step(layer);
  }

  // ---- layer by layer
  function step(next) {
    layer = next;
    slide.value = layer;
    count.textContent = `${layer} of 16`;
    slide.setAttribute("aria-valuetext", `layer ${layer} of 16`);
    play.textContent = still.matches ? "Next layer" : timer ? "Pause" : "Play";
    for (const name of ["length", "correlation", "circle"]) DRAW[name]();
    tell();
  }

  function run() {
    if (layer === 16) layer = -1;
    timer = setInterval(() => (layer < 16 ? step(layer + 1) : pause()), TEMPO);
    step(layer + 1);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    step(layer);
    remember();
  }

  function tell() {
    if (!answer) return;
    const at = (row) => (row?.[layer] === null || row?.[layer] === undefined ? "gone" : digits(row[layer]));
    const rows = [["mean square", at(answer.length.orbit), ""], ["how alike, theory", at(answer.correlation.orbit), ""]];
    if (circle) rows.push(["how alike, network", at(circle.pair), ""], ["circle, times as long", at(circle.stretched), `theory ${at(circle.theory)}`]);
    table.replaceChildren(...figures(rows));
  }

  function remember() {
    setState({ activation: wanted.activation, ...Object.fromEntries(DIALS.map(({ knob, key }) => [key, +wanted[knob].toPrecision(4)])), seed: wanted.seed || null, layer });
  }

  // ---- pictures
  const margin = { left: 44, right: 8, top: 8, rows: 4, columns: 4 };
  const DRAW = {
    plane() {
      const { host, under } = layers.plane;
      if (!plane || !under.clientWidth) return;
      const [right, top] = [plane.x.high, plane.y.high];
      const plot = axes(under, { name: "Order and chaos over weight and bias variance", margin, x: { low: 0, high: right, label: "weight variance" }, y: { low: 0, high: top, label: "bias variance" } });
      ground(plot, plane.rate, plane.x.count, plane.y.count, (rate) => 1 - Math.min(1, Math.abs(rate) / 0.9) ** 0.6);
      const line = plane.edge.map(([x, y]) => [plot.sx(x), plot.sy(y)]);
      if (line.length > 1) plot.svg.append(polyline(line, "crit"));
      const { left: l, right: r, top: t, bottom: b } = plot.inner, end = line.at(-1) ?? [l + 0.3 * (r - l), t];
      plot.svg.append(label(clamp(end[0] - 12, l + 44, r), t + 18, "order", { class: "on", "text-anchor": "end" }), label(r - 10, b - 12, "chaos", { class: "on", "text-anchor": "end" }));
      if (line.length > 1) plot.svg.append(label(clamp(end[0] + 8, l, r - 90), t + 18, "edge of chaos", { class: "on small" }));
      const place = ({ x, y }) => ({ x: +clamp(x, 0, right).toFixed(3), y: +clamp(y, 0, top).toFixed(3) });
      handles.frame({
        width: host.clientWidth, height: host.clientHeight, toPixel: ({ x, y }) => [plot.sx(x), plot.sy(y)],
        toValue: ([x, y]) => place({ x: linear(l, r, 0, right)(x), y: linear(b, t, 0, top)(y) }),
        nudge: ({ x, y }, across, up) => place({ x: x + (across * right) / 120, y: y + (up * top) / 120 }),
        inside: ([x, y]) => x > l - 12 && x < r + 12 && y > t - 12 && y < b + 12,
      });
    },
    length() { staircase(layers.length.under, answer?.length, layer, "mean square before a layer", "mean square after it", margin); },
    correlation() { staircase(layers.correlation.under, answer?.correlation, layer, "how alike before a layer", "how alike after it", margin); },
    circle() {
      const { under } = layers.circle, points = circle?.layers[Math.min(layer, (circle?.layers.length ?? 1) - 1)];
      if (!points || !under.clientWidth) return;
      const w = under.clientWidth, h = under.clientHeight, half = Math.min(w, h) / 2 - 12, at = ([x, y]) => [w / 2 + half * x, h / 2 - half * y];
      const svg = node("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `The circle after layer ${layer}` }), pair = points.slice(-2).map(at);
      svg.append(polyline(points.slice(0, -2).map(at), "strand"));
      if (layer >= circle.layers.length) svg.append(label(w / 2, h - 4, "the signal has left the range of numbers", { class: "small", "text-anchor": "middle" }));
      for (const [x, y] of pair) svg.append(node("circle", { class: "rest attracts pair", cx: x, cy: y, r: 6 }));
      under.replaceChildren(svg);
    },
  };

  replane();
  question(true);
  return () => { stop.abort(); question.stop(); clearInterval(timer); };
}

// The map, the diagonal, and a staircase up to the layer that is shown.
function staircase(box, map, layer, across, up, margin) {
  if (!map || !box.clientWidth) return;
  const { top, orbit } = map, now = orbit[layer];
  const plot = axes(box, { name: `${up}: ${now === null ? "gone" : digits(now)} at layer ${layer}`, margin, x: { low: 0, high: top, label: across }, y: { low: 0, high: top, label: up } });
  curve(plot, [[0, 0], [top, top]], "diagonal");
  curve(plot, map.x.map((x, k) => [x, map.y[k] <= top * 1.02 ? map.y[k] : null]), "curve");
  const inside = (value) => value !== null && value <= top, steps = [];
  for (let k = 0; k < layer && inside(orbit[k]); k++) {
    const [from, to] = [orbit[k], Math.min(orbit[k + 1] ?? top, top)];
    steps.push([from, k ? from : 0], [from, to], [to, to]);
  }
  if (!layer) steps.push([orbit[0], 0], [orbit[0], 0.02 * top]);
  plot.svg.append(polyline(steps.map(([x, y]) => [plot.sx(x), plot.sy(y)]), "stairs"));
  for (const { at, stable } of map.points) plot.svg.append(node("circle", { class: stable ? "rest attracts" : "rest repels", cx: plot.sx(at), cy: plot.sy(at), r: 5 }));
  if (inside(now)) plot.svg.append(node("circle", { class: "here", cx: plot.sx(now), cy: plot.sy(layer ? now : 0), r: 5 }));
}
