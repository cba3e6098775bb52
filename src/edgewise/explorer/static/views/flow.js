// The flow: where one block takes the size and the likeness of tokens. Sliders change the block, the dot where tokens begin.
import { newest } from "../api.js";
import { axes, number, why } from "../chart.js";
import { digits, Handles, layered, paced, Sliders } from "../controls.js";
import { clamp, element, glyph, label, linear, node, polyline, whenChanged } from "../draw.js";
import { ground } from "../ground.js";
import { ModelPanel, sourceOf, stateOf } from "../model.js";

export const title = "Flow";

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop, ask = newest(signal), askVerdict = newest(signal);
  let source = null, answer = null, knobs = {}, start = null;

  const sliders = new Sliders((knob, value, settled) => {
    knobs[knob] = +value.toPrecision(4);
    question(settled);
  });
  const back = element("button", { className: "plain", type: "button", textContent: "Back to the block as given", onclick: () => { knobs = {}; start = null; question(true); } });
  const panel = new ModelPanel({ choose: (next) => choose(next), refuse, signal, sizes: false, between: [sliders.element], after: [back] });
  panel.find("preset").options[0].textContent = "a plain block";

  const { host, under } = layered("square");
  const caption = element("span", { textContent: "A point is a state of the tokens: their size, and the overlap of two." });
  const figure = element("figure", { className: "picture" }, host, element("figcaption", {}, element("p", {}, caption, " ", why("transformers-forward"))));
  const card = reading();
  root.append(panel.element, figure, card.element);
  const handles = new Handles(host, [{ name: "where tokens start", words: "Where tokens start. Arrow keys move it, with Shift further." }], (_, at, settled) => {
    start = at;
    question(settled);
  });
  whenChanged(host, () => draw(), signal);

  const question = paced(async (settled) => {
    const wanted = { source, knobs, start };
    try {
      const next = await ask("flow", wanted);
      if (!next) return;
      answer = next;
      show();
      if (settled) remember();
      if (settled) card.verdict(await askVerdict("flow", { ...wanted, verdict: true }));
      else card.verdict(null);
    } catch (error) {
      refuse(error.message);
    }
  });

  function choose(next) {
    [source, knobs, start] = [next, {}, null];
    question(true);
  }

  function refuse(words) {
    answer = null;
    under.replaceChildren();
    card.stopped(words);
  }

  function show() {
    sliders.show(answer.sliders);
    if (source) panel.show(source, answer);
    else panel.find("note").textContent = answer.note;
    caption.textContent = answer.caption;
    card.show(answer);
    draw();
    const { norm, overlap } = answer.start;
    handles.set("where tokens start", answer.start, `mean square ${digits(norm)}, overlap ${overlap.toFixed(2)}`, overlap);
  }

  function remember() {
    const moved = Object.fromEntries(answer.sliders.filter(({ value, home }) => value !== home).map(({ knob, value }) => [knob, +value.toPrecision(4)]));
    setState({ ...stateOf(source), ...moved, from: start ? `${start.norm},${start.overlap}` : null });
  }

  function draw() {
    if (!answer || !under.clientWidth) return;
    const [low, high] = answer.extent;
    const plot = axes(under, {
      name: `${answer.title}. ${answer.sentences}`, margin: { rows: 5 },
      x: { low, high, log: true, label: "how large tokens are: mean square", format: number },
      y: { low: 0, high: 1, label: "overlap (cosine) of two tokens" },
    });
    ground(plot, answer.arrows[1], answer.norm.length, answer.overlap.length, (change) => 0.74 - (change > 0 ? 1.5 : -2.2) * Math.sqrt(Math.abs(change)));
    arrows(plot, answer);
    answer.paths.slice(0, -1).forEach((path, k) => trail(plot, path, "path", k === 0 ? "starts at right angles" : `overlap ${answer.starts[k]}`));
    trail(plot, answer.paths.at(-1), "path own", "");
    for (const point of answer.points) fixedPoint(plot, point);
    const { left, right, top, bottom } = plot.inner, inverse = linear(left, right, Math.log(low), Math.log(high)), up = linear(bottom, top, 0, 1);
    const inRange = ({ norm, overlap }) => ({ norm: +clamp(norm, low, high).toPrecision(4), overlap: +clamp(overlap, 0, 1).toFixed(4) });
    handles.frame({
      width: under.clientWidth, height: under.clientHeight,
      toPixel: ({ norm, overlap }) => [plot.sx(clamp(norm, low, high)), plot.sy(overlap)],
      toValue: ([x, y]) => inRange({ norm: Math.exp(inverse(x)), overlap: up(y) }),
      nudge: ({ norm, overlap }, across, rise) => inRange({ norm: norm * (high / low) ** (across / 64), overlap: overlap + rise / 64 }),
      inside: ([x, y]) => x > left - 12 && x < right + 12 && y > top - 12 && y < bottom + 12,
    });
  }

  const given = Object.entries(address).filter(([, value]) => value !== "" && Number.isFinite(+value)).filter(([key]) => /^(mlp|attention|value|score)_/.test(key));
  knobs = Object.fromEntries(given.map(([key, value]) => [key, +value]));
  const from = (address.from ?? "").split(",").map(Number);
  if (from.length === 2 && from.every(Number.isFinite)) start = { norm: from[0], overlap: from[1] };
  try {
    source = sourceOf(address);
    await panel.fill();
    if (!signal.aborted) question(true);
  } catch (error) {
    if (!signal.aborted) refuse(error.message);
  }
  return () => { stop.abort(); question.stop(); };
}

// One short stroke at every node, longer where a block moves further.
function arrows(plot, { norm, overlap, arrows: [across, up], extent: [low, high] }) {
  const { left, right, top, bottom } = plot.inner, cell = Math.min((right - left) / norm.length, (bottom - top) / overlap.length);
  const wide = (right - left) / Math.log(high / low), group = node("g", { class: "arrows" });
  overlap.forEach((c, row) => norm.forEach((q, column) => {
    const k = row * norm.length + column;
    if (!row || !column || row === overlap.length - 1 || column === norm.length - 1) return;
    if (across[k] === null || up[k] === null) return;
    const dx = across[k] * wide, dy = -up[k] * (bottom - top), far = Math.hypot(dx, dy);
    const long = cell * (0.12 + 0.8 * Math.sqrt(Math.min(1, far / (3 * cell)))), [ux, uy] = far > 1e-9 ? [dx / far, dy / far] : [0, 0];
    const x = plot.sx(q), y = plot.sy(c), [ex, ey] = [x + (ux * long) / 2, y + (uy * long) / 2], tip = Math.min(5, 0.4 * long);
    const side = (turn) => `${(ex - tip * (ux * 0.87 - turn * uy * 0.5)).toFixed(1)} ${(ey - tip * (uy * 0.87 + turn * ux * 0.5)).toFixed(1)}`;
    group.append(node("path", { d: `M${(x - (ux * long) / 2).toFixed(1)} ${(y - (uy * long) / 2).toFixed(1)}L${ex.toFixed(1)} ${ey.toFixed(1)}M${side(1)}L${ex.toFixed(1)} ${ey.toFixed(1)}L${side(-1)}` }));
  }));
  plot.svg.append(group);
}

function trail(plot, path, kind, words) {
  const at = path.map(([q, c]) => [plot.sx(q), plot.sy(c)]);
  plot.svg.append(polyline(at, kind));
  for (const [x, y] of at.slice(1)) plot.svg.append(node("circle", { class: `bead ${kind}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 2 }));
  if (words) plot.svg.append(label(at[0][0] + 8, at[0][1] - 7, words, { class: "on small" }));
}

function fixedPoint(plot, { norm, overlap, stable }) {
  const x = plot.sx(norm), y = plot.sy(overlap), high = overlap > 0.9;
  plot.svg.append(node("circle", { class: stable ? "rest attracts" : "rest repels", cx: x, cy: y, r: 7 }));
  plot.svg.append(label(x - 13, high ? y + 17 : y + 4, stable ? "attracts" : "repels", { class: "on", "text-anchor": "end" }));
}

// The words beside the picture, at places that do not move.
function reading() {
  const meta = element("p", { className: "meta" }), heading = element("h1", { className: "outcome" }), say = element("p", { className: "say" });
  const table = element("table", { className: "figures" }), outcome = element("p", { className: "outcome small" }), chance = element("p", { className: "chance" });
  const card = element("aside", { className: "card" }, meta, heading, say, element("h2", { textContent: "States that a block leaves alone" }), table, element("h2", { textContent: "Does it train?" }), outcome, chance);
  card.setAttribute("aria-label", "What the flow means");
  const row = (...cells) => element("tr", {}, ...cells.map((words) => element("td", { textContent: words })));
  return {
    element: card,
    show({ name, depth, title: words, sentences, points }) {
      meta.textContent = `${name} · ${depth} blocks`;
      heading.className = "outcome";
      heading.textContent = words;
      say.textContent = sentences;
      table.replaceChildren(...points.map(({ norm, overlap, stable }) => row(stable ? "attracts" : "repels", `mean square ${digits(norm)}`, `overlap ${digits(overlap)}`)));
      if (!points.length) table.replaceChildren(row("none"));
    },
    verdict(answer) {
      if (!answer) return;
      const { kind, outcome: words, chance: share } = answer.verdict;
      outcome.className = `outcome small ${kind}`;
      outcome.replaceChildren(glyph(kind), words);
      chance.textContent = share;
    },
    stopped(words) {
      heading.className = "outcome fails";
      heading.textContent = "This cannot be shown";
      say.textContent = words;
      table.replaceChildren();
      outcome.replaceChildren();
      chance.textContent = "";
    },
  };
}
