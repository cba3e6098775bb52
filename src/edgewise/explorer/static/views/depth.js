// Depth: how deep can I go? The share of networks that trained against depth, for a block and for its fixes.
import { json, newest, save } from "../api.js";
import { axes, band, curve, endLabels, picture } from "../chart.js";
import { element, glyph, label, node } from "../draw.js";
import { ModelPanel, pickFile, sourceOf, stateOf } from "../model.js";
import { Progress } from "../progress.js";

export const title = "Depth";
const KINDS = ["now", "fix-1", "fix-2", "fix-3"];
const CAPTION = "Each line is one block, repeated: across, how often; up, the share of such networks that trained. The band is how far the share moves when whole families of networks are left out of the record.";

// Depths from 1 to the deepest, evenly spaced in their logarithm: a few first, then those between them.
export function spread(deepest, count) {
  return [...new Set(Array.from({ length: count }, (_, k) => Math.round(deepest ** (k / (count - 1)))))];
}

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop, askNetwork = newest(signal);
  let going = new AbortController(), round = 0, source = null, network = null, lines = [], tried = null, deepest = 256;

  const panel = new ModelPanel({ choose: (next) => (next ? choose(next) : empty()), refuse: refused, signal });
  const shown = picture({ name: "Share of networks that trained against depth", height: 460, caption: CAPTION, section: "the-verdict", draw, signal });
  const state = element("div", { className: "state", hidden: true }), progress = new Progress();
  shown.box.after(state);
  const holder = element("div", { className: "holder" }, shown.box, state, progress.element);
  shown.figure.prepend(holder);
  const meta = element("p", { className: "meta" }), heading = element("h1", { className: "outcome" }), say = element("p", { className: "say short" });
  const list = element("ul", { className: "fixes" }), numbers = element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Numbers of the picture" });
  const file = element("button", { type: "button", textContent: "Save numbers", disabled: true, onclick: () => save(new Blob([csv()], { type: "text/csv" }), "depth.csv") });
  const card = element("aside", { className: "card", ariaLabel: "Answer" }, meta, heading, say, element("h2", { textContent: "This block and its fixes" }), list, element("div", { className: "actions" }, file),
    element("details", { className: "numbers" }, element("summary", { textContent: "Numbers" }), numbers));
  root.append(panel.element, element("div", { className: "centre" }, shown.figure), card);

  async function choose(next) {
    const mine = begin();
    lines = [];
    state.hidden = true;
    waiting("Reading the model", "");
    try {
      const answer = await askNetwork("network", next);
      if (!answer || mine !== round) return;
      [source, network] = [next, answer];
      panel.show(source, network);
      setState(stateOf(source));
      await follow(mine);
    } catch (error) {
      if (mine === round && error.name !== "AbortError") refused(error.message, next.name ?? next.preset);
    }
  }

  // Whatever was asked for before is given up, on the server too.
  function begin() {
    going.abort();
    going = new AbortController();
    return ++round;
  }

  // The curves so far stay; what was answered is kept by the server, so that going on begins where it stopped.
  function cancel() {
    begin();
    progress.show("stopped before it was done", { action: ["Go on", () => choose(source)] });
    if (lines[0]?.answer) return;
    heading.replaceChildren("Stopped");
    say.textContent = "The curve so far stays. Going on begins where it stopped.";
  }

  // The block as it is first; its fixes are those at its own depth, or at the first depth at which it does not train.
  async function follow(mine) {
    meta.textContent = `${network.name} · ${network.depth} blocks · theory`;
    const now = { words: "as it is", code: "as it is", note: "the block repeated", fix: {}, rows: [] };
    lines = [now];
    waiting("Following depth", "");
    await fill(now, mine, 6);
    if (mine !== round) return;
    await limit(now, mine);
    if (mine !== round) return;
    heading.replaceChildren(glyph(now.answer.kind), now.answer.words);
    heading.className = `outcome ${now.answer.kind}`;
    say.textContent = now.answer.sentence;
    const at = now.rows.find((row) => row.depth >= network.depth && !trainsAt(row))?.depth;
    if (at) await fixes(at, mine);
    if (mine !== round) return;
    for (const line of lines) await fill(line, mine, 15);
    if (mine === round) done();
  }

  async function fixes(at, mine) {
    const { rows } = await json("depth/fixes", { source: { ...source, depth: at } }, going.signal);
    if (mine !== round) return;
    lines.push(...rows.map((row, k) => ({ words: short(row.change), code: row.change, note: `${row.note}, chosen for ${at} blocks`, fix: { fix: k, at }, rows: [] })));
    shown.say(`${CAPTION} A fix is chosen for ${at} blocks and kept at all depths.`);
    for (const line of lines.slice(1)) {
      await fill(line, mine, 6);
      if (mine !== round) return;
      await limit(line, mine);
    }
  }

  async function fill(line, mine, count) {
    const wanted = [...spread(deepest, count), network.depth].filter((depth) => depth <= deepest && !line.rows.some((row) => row.depth === depth));
    for (const depths of network.positions ? wanted.map((depth) => [depth]) : [wanted].filter((each) => each.length)) {
      if (mine !== round || signal.aborted) return;
      const total = line.rows.length + wanted.filter((depth) => !line.rows.some((row) => row.depth === depth)).length;
      tell(`${line.words}: ${line.rows.length} of ${total} depths`, line.rows.length / total);
      const answer = await json("depth", { source, ...line.fix, depths }, going.signal);
      if (mine !== round) return;
      [tried, deepest] = [answer.tried, answer.deepest];
      line.rows = [...line.rows, ...answer.rows.filter((row) => row.depth <= deepest)].sort((a, b) => a.depth - b.depth);
      shown.redraw();
    }
    table();
  }

  async function limit(line, mine) {
    const trains = line.rows.filter(trainsAt), first = line.rows.find((row) => !trainsAt(row) && trains.some((other) => other.depth < row.depth));
    const below = trains.filter((row) => !first || row.depth < first.depth).at(-1);
    const answer = await json("depth/limit", { source, ...line.fix, trains: below?.depth ?? null, above: first?.depth ?? null }, going.signal);
    if (mine !== round) return;
    line.rows = [...line.rows, ...answer.rows].sort((a, b) => a.depth - b.depth);
    shown.redraw();
    const kind = (answer.limit ?? 0) >= network.depth ? "trains" : "fails";
    line.answer = { ...answer, kind, words: answer.then[0].toUpperCase() + answer.then.slice(1) };
    rowsOfFixes();
  }

  function rowsOfFixes() {
    list.replaceChildren(...lines.map((line, k) => {
      const swatch = node("svg", { viewBox: "0 0 28 8", class: "swatch", "aria-hidden": "true" }, node("path", { class: `curve ${KINDS[k]}`, d: "M1 4H27" }));
      const words = element("span", { className: "what" }, element("span", { className: "named" }, swatch, element("code", { textContent: line.code })), element("small", { textContent: line.note }));
      const end = line.answer ? element("span", { className: `then ${line.answer.kind}` }, glyph(line.answer.kind), line.answer.then) : "";
      return element("li", {}, element("div", { className: "fix" }, words, end));
    }));
  }

  function draw(box) {
    const plot = axes(box, {
      x: { low: 1, high: deepest, log: true, values: [1, 2, 4, 8, 16, 32, 64, 128, 256].filter((v) => v <= deepest), label: "depth, blocks" },
      y: { low: 0, high: 1, values: [0, 0.25, 0.5, 0.75, 1], format: (v) => `${100 * v}\u00a0%`, label: "share of such networks that trained" },
      name: spoken(), margin: { right: box.clientWidth < 480 ? 12 : 132, top: 20 },
    });
    const { left, right, top, bottom } = plot.inner;
    for (const [share, words] of [[0.79, "trains"], [0.5, "risky"], [0.21, "will not train"]]) plot.svg.append(label(left + 8, plot.sy(share) + 4, words, { class: "small on" }));
    if (tried) {
      const x = plot.sx(tried[1]);
      plot.svg.append(node("line", { class: "rule", x1: x, x2: x, y1: top, y2: bottom }), label(x + 6, top - 6, plot.phone ? "not tried" : "deeper than what was tried", { class: "tick" }));
    }
    lines.forEach((line, k) => {
      if (k < 2) band(plot, line.rows.map((row) => [row.depth, row.low, row.high]), `band ${KINDS[k]}`);
    });
    lines.forEach((line, k) => curve(plot, line.rows.map((row) => [row.depth, row.share]), `curve ${KINDS[k]}`));
    const own = lines[0]?.rows.find((row) => row.depth === network.depth);
    if (own?.share != null) plot.svg.append(node("circle", { class: "target", cx: plot.sx(own.depth), cy: plot.sy(own.share), r: 6 }), label(plot.sx(own.depth) - 4, plot.sy(own.share) + (own.share > 0.5 ? 24 : -14), "your model", { class: "on small", "text-anchor": "end" }));
    if (!plot.phone) endLabels(plot, lines.filter((line) => line.rows.at(-1)?.share != null).map((line, k) => ({ y: plot.sy(line.rows.at(-1).share), words: line.words, kind: KINDS[lines.indexOf(line)] })));
    Object.assign(state.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
  }

  const spoken = () => lines.map((line) => `${line.words}: ${line.rows.map((row) => `${row.depth} blocks ${row.share === null ? "no share" : `${Math.round(100 * row.share)} %`}`).join(", ")}`).join(". ") || "Empty axes";

  function table() {
    const depths = [...new Set(lines.flatMap((line) => line.rows.map((row) => row.depth)))].sort((a, b) => a - b);
    const cell = (line, depth) => line.rows.find((row) => row.depth === depth);
    const show = (row) => (!row ? "" : row.share === null ? row.outcome : `${Math.round(100 * row.share)}\u00a0% (${Math.round(100 * row.low)} to ${Math.round(100 * row.high)})`);
    const head = element("tr", {}, ...["blocks", ...lines.map((line) => line.words)].map((words) => element("th", { textContent: words, scope: "col" })));
    numbers.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...depths.map((depth) => element("tr", {}, element("th", { textContent: depth, scope: "row" }), ...lines.map((line) => element("td", { textContent: show(cell(line, depth)) })))))));
  }

  function csv() {
    const rows = lines.flatMap((line) => line.rows.map((row) => [JSON.stringify(line.code).replaceAll('\\"', '""'), row.depth, row.share, row.low, row.high, row.outcome].join(",")));
    return ["network,blocks,share,low,high,outcome", ...rows].join("\n") + "\n";
  }

  const tell = (words, done) => progress.show(words, { done, action: ["Cancel", cancel] });

  function done() {
    progress.hide();
    file.disabled = false;
    rowsOfFixes();
  }

  function waiting(words, text) {
    card.classList.add("waiting");
    heading.className = "outcome undecided";
    heading.replaceChildren(words);
    say.textContent = text;
    file.disabled = true;
    list.replaceChildren();
    numbers.replaceChildren();
    card.classList.remove("waiting");
    shown.redraw();
  }

  function message(kind, words, text, ...actions) {
    begin();
    progress.hide();
    [network, lines] = [null, []];
    state.className = `state ${kind}`;
    state.replaceChildren(element("h2", { textContent: words }), element("p", { textContent: text }), ...actions);
    state.hidden = false;
    panel.disable();
    shown.redraw();
  }

  function refused(words, name) {
    message("error", "This cannot be shown", words, element("button", { type: "button", textContent: "Choose another file", onclick: pickFile }));
    meta.textContent = name;
    waiting("No answer", "");
  }

  function empty() {
    const start = (preset) => element("button", { type: "button", textContent: `Start with ${preset}`, onclick: () => choose({ preset }) });
    message("", "How deep can this block be stacked?", "Drop a config.json or a saved trace here, or choose a preset. Nothing is uploaded; the page works without a network.", start("transformer"));
    meta.textContent = "no model yet";
    waiting("Waiting for a model", "How deep it trains, and how much deeper with each fix, appears here.");
  }

  (async () => {
    try {
      await panel.fill();
      const named = sourceOf(address);
      if (signal.aborted) return;
      if (named) await choose(named);
      else empty();
    } catch (error) {
      if (!signal.aborted) refused(error.message, "");
    }
  })();
  return () => {
    begin();
    stop.abort();
  };
}

const trainsAt = (row) => row.share !== null && row.share >= 0.75; // the outcome itself is left open far from the record
const short = (change) => (change.startsWith("edgewise.") ? "initialize_" : change.length > 18 ? change.replace("attention_branch = mlp_branch", "branches").slice(0, 20) : change);
