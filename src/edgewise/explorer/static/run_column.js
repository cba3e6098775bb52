// One run on the page: its heat map, its curves and its alarms, with a cursor that all pictures share.
import { ask, json, save } from "./api.js";
import { axes, curve, heat, heatScale, number, picture } from "./chart.js";
import { clamp, element, glyph, label, node, ramp } from "./draw.js";

const HEAT = 250, CURVE = 150;

// steps: [first, last] of every column of the picture.
const edgesOf = (steps) => [...steps.map(([first]) => first), (steps.at(-1)?.[1] ?? 0) + 1];

export class RunColumn {
  // onCursor(step) is told where the reader points; range() gives {x, heat, curves} that all columns share.
  // curve() names the curve of the run that is shown below the loss, or null.
  constructor(name, { onCursor, range, curve: chosen, signal }) {
    Object.assign(this, { name, onCursor, range, chosen, data: null, plots: [], cursor: null });
    this.title = element("h1", { className: "run-title", textContent: name });
    this.note = element("p", { className: "meta" });
    this.unseen = element("ul", { className: "unseen undecided", ariaLabel: "What was not seen" });
    this.readout = element("p", { className: "readout" });
    const make = (title, height, caption, draw) => picture({ title, name: title, height, caption, section: "the-verdict", draw, signal });
    this.heat = make("Blocks by steps", HEAT, "", (box) => this.#heat(box));
    this.worst = make("All blocks", CURVE, "", (box) => this.#worst(box));
    this.loss = make("Loss", CURVE, "The training loss as the loop saw it; thin as it is, thick smoothed.", (box) => this.#loss(box));
    this.other = make("Of the run", CURVE, "", (box) => this.#other(box));
    this.alarms = element("div", { className: "alarms" });
    this.file = element("button", { type: "button", textContent: "Save table", disabled: true, onclick: () => this.#save("run/table", "rows.csv") });
    this.report = element("button", { type: "button", textContent: "Report", onclick: () => this.#save("run/report", "report.html") });
    this.pictures = element("div", { className: "run-pictures" }, this.title, this.unseen, this.note, this.readout, this.heat.figure, this.worst.figure, this.loss.figure, this.other.figure);
    this.element = element("section", { className: "run" }, this.pictures, this.alarms);
    this.element.setAttribute("aria-label", `Run ${name}`);
    this.#listen();
  }

  async load(statistic, signal) {
    const data = await json("run", { name: this.name, statistic: statistic || null }, signal);
    this.data = data;
    this.title.textContent = data.title;
    this.note.textContent = `${data.note} · ${data.state}`;
    this.unseen.replaceChildren(...data.unseen.map((sentence) => element("li", { textContent: sentence })));
    this.unseen.hidden = !data.unseen.length;
    this.file.disabled = !data.steps.length;
    this.#words();
    this.#alarms();
  }

  draw() {
    this.plots = [];
    for (const each of this.#all()) each.redraw();
    this.point(this.cursor);
  }

  #all() {
    return [this.heat, this.worst, this.loss, this.other];
  }

  #words() {
    const { heat: shown, rows_in_column: count, blind } = this.data, many = count > 1 ? ` Each column is the worst of up to ${count} rows.` : "";
    const title = (each, words) => (each.figure.querySelector("h2").textContent = words);
    if (shown) {
      const unit = shown.unit ? `, ${shown.unit}` : "";
      title(this.heat, `${shown.label}${unit}, of every block`);
      title(this.worst, `${shown.label}${unit}, ${shown.which} of all blocks`);
      this.heat.say(`Blocks from the input (below) to the output (above), steps from left to right. Color: ${shown.meaning}${shown.which === "smallest" ? ", strong where it is small" : ""}.${shown.log ? " The color is logarithmic." : ""}${many}`);
      this.worst.say(`The ${shown.which} value of all blocks at each step.${healthy(shown.healthy)}`);
    } else this.heat.say(blind.length ? `Not watched: ${blind.join("; ")}` : "No number of a block has been stored yet.");
    const other = this.data.curves[this.chosen(this.data)];
    this.other.figure.hidden = !other;
    if (!other) return;
    title(this.other, `${other.label}${other.unit ? `, ${other.unit}` : ""}`);
    this.other.say(`${other.meaning[0].toUpperCase()}${other.meaning.slice(1)}.${healthy(other.healthy)}`);
  }

  // ---- pictures
  #frame(box, y, bottomWords) {
    const { x } = this.range();
    const plot = axes(box, { x: { ...x, label: bottomWords }, y, margin: { left: box.clientWidth < 480 ? 46 : 64, right: 84, top: 16, rows: 4 }, name: this.#spoken(y) });
    this.plots.push(plot);
    return plot;
  }

  #spoken() {
    const { heat: shown, curves, alarms } = this.data ?? {};
    if (!shown) return "No data yet";
    const ends = (values) => { const seen = values.filter((v) => v !== null); return seen.length ? `from ${number(seen[0])} to ${number(seen.at(-1))}` : "not observed"; };
    return `${shown.label}: ${ends(shown.worst)}. Loss: ${ends(curves.loss?.values ?? [])}. ${alarms.length} alarms.`;
  }

  #heat(box) {
    const shown = this.data?.heat, count = shown?.places.length ?? 1, every = Math.max(1, Math.ceil(count / 9));
    const spots = Array.from({ length: count }, (_, k) => k).filter((k) => k % every === 0 || k === count - 1);
    const plot = this.#frame(box, { low: 0, high: count, values: [] }, "");
    if (!shown) return this.#empty(plot, "no row of a block yet");
    for (const k of spots) plot.svg.append(label(plot.inner.left - 8, plot.sy(k + 0.5) + 4, shown.places[k] === "embedding" ? "input" : k === count - 1 ? `block ${shown.places[k]}` : shown.places[k], { class: "tick", "text-anchor": "end" }));
    const scale = this.range().heat;
    const colors = shown.which === "smallest" ? ramp("h").reverse() : ramp("h"); // trouble has ink
    heat(plot, shown.rows, { ...scale, colors, edges: edgesOf(this.data.steps) });
    heatScale(plot, { ...scale, colors });
    this.#marks(plot, true);
  }

  #worst(box) {
    const shown = this.data?.heat, y = shown ? pad(this.range().heat) : { low: 0, high: 1 };
    const plot = this.#frame(box, y, "");
    if (!shown) return this.#empty(plot, "no row of a block yet");
    this.#healthy(plot, shown.healthy, y);
    this.#line(plot, shown.worst, "curve");
    this.#end(plot, shown.worst);
    this.#marks(plot, false);
  }

  #other(box) {
    const values = this.data?.curves[this.chosen(this.data)]?.values;
    if (!values) return box.replaceChildren();
    const y = this.range().other, plot = this.#frame(box, y, "training step");
    this.#healthy(plot, this.data.curves[this.chosen(this.data)].healthy, y);
    curve(plot, this.data.steps.map(([first, last], k) => [(first + last) / 2, values[k]]).filter(([, value]) => value !== null)); // not every row has it
    this.#end(plot, values);
    this.#marks(plot, false);
  }

  #healthy(plot, [low, high], y) {
    for (const limit of [low, high]) if (limit !== null && limit > y.low && limit < y.high) plot.svg.append(node("line", { class: "rule", x1: plot.inner.left, x2: plot.inner.right, y1: plot.sy(limit), y2: plot.sy(limit) }), label(plot.inner.left + 6, plot.sy(limit) + (limit === low ? 14 : -5), limit === low ? "healthy above" : "healthy below", { class: "tick" }));
  }

  #loss(box) {
    const values = this.data?.curves.loss?.values ?? [], seen = values.filter((v) => v !== null);
    const plot = this.#frame(box, this.range().loss, "training step");
    if (!seen.length) return this.#empty(plot, "no loss was reported");
    this.#line(plot, values, "thin");
    this.#line(plot, smoothed(values), "curve");
    this.#end(plot, smoothed(values));
    this.#marks(plot, false);
  }

  #line(plot, values, kind) {
    curve(plot, this.data.steps.map(([first, last], k) => [(first + last) / 2, values[k]]), kind);
  }

  #end(plot, values) {
    const k = values.findLastIndex((v) => v !== null);
    if (k >= 0) plot.svg.append(label(plot.inner.right + 6, clamp(plot.sy(values[k]) + 4, plot.inner.top + 4, plot.inner.bottom), number(+values[k].toPrecision(3)), { class: "small strong" }));
  }

  #marks(plot, words) {
    const { top, bottom, right } = plot.inner;
    this.data.alarms.forEach(({ step }, k) => {
      const x = plot.sx(step);
      plot.svg.append(node("line", { class: k ? "alarm-line later" : "alarm-line", x1: x, x2: x, y1: top, y2: bottom }));
      if (words && !k) plot.svg.append(label(x, top - 5, `alarm, step ${step}`, { class: "small alarm-word", "text-anchor": x > right - 60 ? "end" : x < plot.inner.left + 50 ? "start" : "middle" }));
    });
  }

  #empty(plot, words) {
    plot.svg.append(label((plot.inner.left + plot.inner.right) / 2, (plot.inner.top + plot.inner.bottom) / 2, words, { "text-anchor": "middle" }));
  }

  // ---- the cursor
  #listen() {
    for (const { box } of this.#all()) {
      box.addEventListener("pointermove", (event) => this.#pointed(event));
      box.addEventListener("pointerdown", (event) => this.#pointed(event));
    }
    const box = this.heat.box;
    box.tabIndex = 0;
    box.setAttribute("role", "slider");
    box.setAttribute("aria-label", `Step of ${this.name}`);
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  #pointed(event) {
    const plot = this.plots.find((each) => each.box === event.currentTarget);
    if (!plot || !this.data?.steps.length) return;
    const x = event.clientX - plot.box.getBoundingClientRect().left, { low, high } = this.range().x;
    this.onCursor(clamp(low + ((x - plot.inner.left) / (plot.inner.right - plot.inner.left)) * (high - low), low, high - 1));
  }

  #key(event) {
    const steps = this.data?.steps ?? [], move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !steps.length) return;
    event.preventDefault();
    const now = this.#at(this.cursor ?? steps.at(-1)[1]), next = clamp(now + move * (event.shiftKey ? 10 : 1), 0, steps.length - 1);
    this.onCursor(steps[next][0]);
  }

  #at(step) {
    const { steps } = this.data, k = steps.findIndex(([, last]) => last >= step);
    return k < 0 ? steps.length - 1 : k;
  }

  // Draw the cursor at a step and say what stood there.
  point(step) {
    this.cursor = step;
    for (const plot of this.plots) {
      plot.svg.querySelector(".cursor")?.remove();
      if (step !== null) plot.svg.append(node("line", { class: "cursor", x1: plot.sx(step), x2: plot.sx(step), y1: plot.inner.top, y2: plot.inner.bottom }));
    }
    if (!this.data?.steps.length) return;
    const k = this.#at(step ?? Infinity), [first, last] = this.data.steps[k], { heat: shown, curves } = this.data;
    const value = (v) => (v === null || v === undefined ? "not observed" : number(v));
    const where = shown ? shown.places[shown.rows.findIndex((row) => row[k] === shown.worst[k])] : "";
    const more = curves[this.chosen(this.data)];
    const words = [`step ${first === last ? first : `${first} to ${last}`}`, shown && `${shown.label.toLowerCase()} ${value(shown.worst[k])}${where ? ` (${where === "embedding" ? "input" : `block ${where}`})` : ""}`, curves.loss && `loss ${value(curves.loss.values[k])}`, more && `${more.label.toLowerCase()} ${this.#latest(more.values, k)}`].filter(Boolean).join(" · ");
    this.readout.textContent = words;
    const box = this.heat.box;
    for (const [key, number_] of [["min", this.data.steps[0][0]], ["max", this.data.steps.at(-1)[1]], ["now", first]]) box.setAttribute(`aria-value${key}`, number_);
    box.setAttribute("aria-valuetext", words);
  }

  // Not every row has every number: else the last one before it, with its step.
  #latest(values, k) {
    const seen = values.findLastIndex((value, place) => place <= k && value !== null);
    if (seen < 0) return "not observed yet";
    return `${number(values[seen])}${seen === k ? "" : ` (step ${this.data.steps[seen][0]})`}`;
  }

  // ---- alarms
  #alarms() {
    const { alarms, live } = this.data;
    const rest = alarms.slice(1).map((alarm) => element("details", { className: "later" }, element("summary", { textContent: `step ${alarm.step}: ${alarm.title}` }), story(alarm)));
    const blank = element("div", { className: "alarm calm" }, element("p", { className: "alarm-head undecided" }, glyph("undecided"), "Not enough was seen"), element("p", { textContent: "No alarm is known, and too little was seen to say that there was none: see the list above." }));
    const calm = this.data.unseen.length ? blank : element("div", { className: "alarm calm" }, element("p", { className: "alarm-head trains" }, glyph("trains"), "No alarm"), element("p", { textContent: live ? "Nothing has left its own past so far. The page follows the run while it grows." : "Nothing left its own past in this run." }));
    const card = alarms.length ? element("div", { className: "alarm" }, element("p", { className: "alarm-head fails" }, glyph("fails"), `Alarm at step ${alarms[0].step}`), element("h2", { textContent: `${alarms[0].title}.` }), story(alarms[0])) : calm;
    const after = rest.length ? [element("h3", { textContent: "Alarms after it" }), ...rest] : [];
    card.append(...after, element("div", { className: "actions" }, this.file, this.report));
    this.alarms.replaceChildren(card);
  }

  async #save(path, file) {
    try {
      save(await (await ask(path, { name: this.name })).blob(), file);
    } catch (error) {
      this.readout.textContent = error.message;
    }
  }
}

function story({ what, cause, could_be: rivals, first, then, also, means, try: advice, ruled_out: ruled }) {
  const part = (title, ...items) => [element("h3", { textContent: title }), ...items];
  return element("div", { className: "story" }, element("p", { textContent: `${what} ${means}` }),
    ...(cause ? part("Cause", element("p", { textContent: cause })) : []),
    ...(first ? part("What moved first", element("ol", {}, ...[first, ...then].map((words) => element("li", { textContent: words })))) : []),
    ...(also.length ? part("Also", element("ol", {}, ...also.map((words) => element("li", { textContent: words })))) : []),
    ...part("What to do", element("p", { textContent: advice })),
    ...(rivals.length ? part("Could be", element("p", { textContent: `${rivals.join("; ")}.` })) : []),
    ...(ruled.length ? part("Ruled out", element("p", { textContent: `${ruled.join("; ")}.` })) : []));
}

function healthy([low, high]) {
  const range = [low ? `above ${number(low)}` : "", high !== null ? `below ${number(high)}` : ""].filter(Boolean).join(" and ");
  return range ? ` Healthy runs stay ${range}.` : "";
}

// A moving average over a thirtieth of the run.
export function smoothed(values) {
  const keep = Math.exp(-30 / Math.max(30, values.length));
  let mean = null;
  return values.map((v) => (v === null ? mean : (mean = mean === null ? v : keep * mean + (1 - keep) * v)));
}

// Room above and below, so that no curve lies on the frame.
export function pad({ low, high, log }) {
  if (log) return { low: low / 1.3, high: high * 1.3, log };
  const room = 0.06 * (high - low) || Math.abs(high) || 1;
  return { low: low - room, high: high + room };
}
