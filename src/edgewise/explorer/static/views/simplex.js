// The simplex: a row of attention over three tokens is a point of a triangle; three ways of training take it to a target.
import { json, newest } from "../api.js";
import { axes, curve, number, picture, why } from "../chart.js";
import { Handles, layered, paced, readingCard, Sliders } from "../controls.js";
import { clamp, element, label, node, polyline, ramp, whenChanged } from "../draw.js";

export const title = "Simplex";
const LABELS = { replicator: "limit-label", gradient: "", natural: "natural-label" };
const KINDS = { replicator: "way limit", gradient: "way", natural: "way natural" };
const EXAMPLES = [
  ["From one token to another", [0.05, 0.15, 0.8], [0.75, 0.2, 0.05]],
  ["Into a corner", [0.02, 0.03, 0.95], [1, 0, 0]],
  ["Onto an edge", [0.05, 0.05, 0.9], [0.5, 0.5, 0]],
];
const percent = (row) => row.map((weight) => `${Math.round(100 * weight)}`).join(", ");

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop, ask = newest(signal);
  const row = (text, otherwise) => { const values = (text ?? "").split(",").map(Number); return values.length === 3 && values.every((v) => Number.isFinite(v) && v >= 0) && Math.abs(values[0] + values[1] + values[2] - 1) < 1e-3 ? values : otherwise; };
  const wanted = { start: row(address.start, EXAMPLES[0][1]), target: row(address.target, EXAMPLES[0][2]), mixing: clamp(Number.isFinite(+address.mixing) && address.mixing !== undefined ? +address.mixing : 0.4, 0, 1), seed: /^\d{1,6}$/.test(address.seed ?? "") ? +address.seed : 0 };
  let answer = null, grid = null, base = null, drawnFor = "";

  const sliders = new Sliders((_, value, settled) => { wanted.mixing = value; question(settled); });
  const other = element("button", { className: "plain", type: "button", textContent: "Draw other keys", onclick: () => { wanted.seed = (wanted.seed + 1) % 1e6; question(true); } });
  const examples = EXAMPLES.map(([words, start, target]) => element("button", { className: "plain", type: "button", textContent: words, onclick: () => { Object.assign(wanted, { start, target }); question(true); } }));
  const fold = element("details", { className: "fold", open: !matchMedia("(max-width: 760px)").matches }, element("summary", { textContent: "Start, target and keys" }),
    element("p", { className: "label", textContent: "Drag start and target, or begin with" }), element("div", { className: "group stack" }, ...examples), sliders.element, other);
  const panel = element("aside", { className: "panel" }, fold);
  panel.setAttribute("aria-label", "Start, target and keys");

  const { host, under } = layered("triangle"), words = element("span");
  const figure = element("figure", { className: "picture" }, host, element("figcaption", {}, element("p", {}, words, " ", why("softmax-descent"))));
  const plots = {
    condition: picture({ title: "Condition number of the softmax", name: "Condition number along the paths", height: 190, caption: "", section: "softmax-descent", signal, draw: (box) => along(box, "condition", "times") }),
    loss: picture({ title: "Distance from the target", name: "Loss along the paths", height: 190, caption: "", section: "softmax-descent", signal, draw: (box) => along(box, "loss", "") }),
  };
  const card = readingCard("What the paths mean", plots.condition.figure, plots.loss.figure);
  root.append(panel, figure, card.element);
  const handles = new Handles(host, [
    { name: "target", words: "Target of the row of attention. Arrow keys move it, with Shift further.", kind: "goal" },
    { name: "start", words: "Start of the row of attention. Arrow keys move it, with Shift further." },
  ], (name, at, settled) => { wanted[name] = at; question(settled); });
  whenChanged(host, () => draw(), signal);

  const question = paced(async (settled) => {
    try {
      const next = await ask("simplex", wanted);
      if (!next) return;
      answer = next;
      show();
      if (settled) setState({ start: text(wanted.start), target: text(wanted.target), mixing: +wanted.mixing.toFixed(2), seed: wanted.seed || null });
    } catch (error) {
      card.stopped(error.message);
    }
  });
  const text = (values) => values.map((v) => +v.toFixed(4)).join(",");

  function show() {
    sliders.show([{ knob: "mixing", label: "keys away from orthogonal", low: 0, high: 1, step: 0.01, value: wanted.mixing, home: 0.4 }]);
    card.show(`row of attention, three tokens · start ${percent(wanted.start)}\u00a0%`, answer.title, answer.sentences);
    words.textContent = answer.captions.triangle;
    for (const name of ["condition", "loss"]) { plots[name].say(answer.captions[name]); plots[name].redraw(); }
    draw();
    for (const name of ["start", "target"]) handles.set(name, wanted[name], `${percent(wanted[name])} per cent on tokens 1, 2 and 3`, wanted[name][0]);
  }

  function draw() {
    const w = under.clientWidth, h = under.clientHeight;
    if (!answer || !w) return;
    const side = Math.min(w - 72, (h - 64) / 0.866), left = (w - side) / 2, bottom = 28 + side * 0.866;
    const corners = [[left, bottom], [left + side, bottom], [left + side / 2, 28]];
    const place = (weights) => [0, 1].map((k) => weights[0] * corners[0][k] + weights[1] * corners[1][k] + weights[2] * corners[2][k]);
    const plain = ([x, y]) => { const third = (bottom - y) / (side * 0.866), second = (x - left - (third * side) / 2) / side; return [1 - second - third, second, third]; };
    const svg = node("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `${answer.title}. ${answer.sentences}` });
    if (drawnFor !== `${w} ${h} ${grid !== null} ${matchMedia("(prefers-color-scheme: dark)").matches}`) {
      drawnFor = `${w} ${h} ${grid !== null} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
      base = ground(w, h, plain);
    }
    under.replaceChildren(base, svg);
    svg.append(node("path", { class: "frame edge", d: `M${corners.map((c) => c.map((v) => v.toFixed(1)).join(" ")).join("L")}Z` }));
    const names = [["token 1", -4, 20, "start"], ["token 2", 4, 20, "end"], ["token 3", 0, -10, "middle"]];
    names.forEach(([name, dx, dy, anchor], k) => svg.append(label(corners[k][0] + dx, corners[k][1] + dy, name, { class: "axis", "text-anchor": anchor })));
    for (const [name, kind] of Object.entries(KINDS)) {
      const { row: rows, name: said } = answer.paths[name], at = rows.map(place);
      svg.append(polyline(at, kind));
      for (const time of [1, 10, 100, 1000]) {
        const k = answer.times.findIndex((t) => t >= time);
        svg.append(node("circle", { class: `mark ${kind}`, cx: at[k][0].toFixed(1), cy: at[k][1].toFixed(1), r: 3 }));
      }
      named(svg, at, said, name);
    }
    const inside = ([a, b, c]) => { const [x, y, z] = [a, b, c].map((v) => Math.max(0, v)), sum = x + y + z; return [x, y, z].map((v) => +(v / sum).toFixed(4)); };
    const weights = (pixel) => inside(plain(pixel));
    handles.frame({
      width: w, height: h, toPixel: place, toValue: weights,
      nudge: (at, across, up) => { const [x, y] = place(at); return weights([x + (across * side) / 64, y - (up * side) / 64]); },
      inside: ([x, y]) => y > 8 && y < bottom + 20 && Math.abs(x - w / 2) < side / 2 + 20,
    });
  }

  function ground(w, h, toWeights) {
    const ratio = Math.min(2, window.devicePixelRatio || 1), canvas = element("canvas", { width: w * ratio, height: h * ratio });
    canvas.setAttribute("aria-hidden", "true");
    Object.assign(canvas.style, { left: 0, top: 0, width: `${w}px`, height: `${h}px` });
    if (!grid) return canvas;
    const { steps: n, values } = grid, colors = ramp("h"), image = new ImageData(canvas.width, canvas.height);
    const value = (i, j) => values[i * (n + 1) - (i * (i - 1)) / 2 + j];
    for (let py = 0; py < canvas.height; py++) for (let px = 0; px < canvas.width; px++) {
      const [first, second, third] = toWeights([px / ratio, py / ratio]);
      if (first < 0 || second < 0 || third < 0) continue;
      const i = Math.min(Math.floor(first * n), n - 1), j = Math.min(Math.floor(second * n), n - 1 - i), s = first * n - i, t = second * n - j;
      const mean = s + t <= 1 ? (1 - s - t) * value(i, j) + s * value(i + 1, j) + t * value(i, j + 1) : (s + t - 1) * value(i + 1, j + 1) + (1 - t) * value(i + 1, j) + (1 - s) * value(i, j + 1);
      image.data.set([...colors[Math.round(127 * clamp(mean / 2.2, 0, 1))], 255], 4 * (py * canvas.width + px));
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  function along(box, quantity, unit) {
    if (!answer) return;
    const values = Object.values(answer.paths).flatMap((path) => path[quantity]).filter((v) => v !== null);
    const [low, high] = quantity === "condition" ? [0, Math.max(1, Math.ceil(Math.max(...values)))] : [-6, 0];
    const plot = axes(box, { name: `${quantity} over time`, margin: { left: 44, right: 4, rows: 3, columns: 4 }, x: { low: 0.01, high: 1e4, log: true, label: "time" }, y: { low: 10 ** low, high: 10 ** high, log: true, unit, format: number } });
    for (const [name, kind] of Object.entries(KINDS)) {
      const path = answer.paths[name];
      curve(plot, path[quantity].slice(1).map((v, k) => [answer.times[k + 1], v === null || v < low ? null : 10 ** v]), kind);
    }
    if (quantity === "loss") for (const name of Object.keys(KINDS)) {
      const { arrives, name: said } = answer.paths[name];
      if (!arrives || name === "replicator") continue;
      const left = name === "natural", x = plot.sx(clamp(arrives, 0.01, 1e4));
      plot.svg.append(label(left ? Math.max(x - 10, plot.inner.left + 100) : Math.min(x + 12, plot.inner.right - 52), left ? plot.sy(1e-4) : plot.sy(0.2), said, { class: `small ${LABELS[name]}`, "text-anchor": left ? "end" : "start" }));
    }
  }

  question(true);
  try {
    grid = await json("simplex/condition", undefined, signal);
    draw();
  } catch (error) {
    if (error.name !== "AbortError") card.stopped(error.message);
  }
  return () => { stop.abort(); question.stop(); };
}

// The name of a path, each at another part of it.
function named(svg, at, words, name) {
  const part = { natural: 0.5, replicator: 0.3, gradient: 0.8 }[name], long = at.slice(1).map(([x, y], k) => Math.hypot(x - at[k][0], y - at[k][1]));
  const whole = long.reduce((sum, v) => sum + v, 0);
  let run = 0;
  const k = long.findIndex((v) => (run += v) >= part * whole);
  if (whole < 60 || k < 0) return;
  const natural = name === "natural";
  svg.append(label(at[k][0] + (natural ? -10 : 10), at[k][1] + 5, words, { class: `on ${LABELS[name]}`, "text-anchor": natural ? "end" : "start" }));
}
