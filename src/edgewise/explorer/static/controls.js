// Things to move: sliders, and dots above a picture that is drawn again while they are held.
import { clamp, element, node } from "./draw.js";

const EVERY = 50; // milliseconds between two questions while something is moved

// rows: {knob, label, low, high, value, home, step, format}. moved(knob, value, settled) follows the hand.
export class Sliders {
  constructor(moved) {
    this.moved = moved;
    this.element = element("div", { className: "group sliders" });
    this.rows = new Map();
  }

  show(rows) {
    if (rows.map(({ knob }) => knob).join() !== [...this.rows.keys()].join()) this.#build(rows);
    for (const row of rows) this.#set(row);
  }

  #build(rows) {
    this.rows.clear();
    this.element.replaceChildren(...rows.map(({ knob, label }) => {
      const input = element("input", { type: "range", id: `slide-${knob}` }), value = element("output", { htmlFor: input.id });
      input.addEventListener("input", () => this.#turn(knob, false));
      input.addEventListener("change", () => this.#turn(knob, true));
      this.rows.set(knob, { input, value });
      return element("div", { className: "slider" }, element("label", { className: "label", htmlFor: input.id, textContent: label }), value, input);
    }));
  }

  #set(row) {
    const { knob, low, high, value, step = (high - low) / 200 } = row, { input } = this.rows.get(knob);
    Object.assign(this.rows.get(knob), { row });
    if (document.activeElement !== input || !this.held) Object.assign(input, { min: low, max: high, step, value });
    this.#spell(knob, this.held ? +input.value : value);
  }

  #spell(knob, now) {
    const { input, value, row } = this.rows.get(knob), words = (row.format ?? digits)(now);
    value.textContent = words;
    input.setAttribute("aria-valuetext", `${words}${row.home === undefined || Math.abs(now - row.home) < 1e-9 ? "" : `, as given ${digits(row.home)}`}`);
  }

  #turn(knob, settled) {
    this.held = !settled;
    this.#spell(knob, +this.rows.get(knob).input.value);
    this.moved(knob, +this.rows.get(knob).input.value, settled);
  }
}

export const digits = (value) => String(+(+value).toPrecision(3));

// At most twenty calls a second, and the last one always; `stop` forgets what is waiting.
export function paced(act) {
  let timer = null, last = 0;
  const run = (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => { last = performance.now(); act(...words); }, Math.max(0, EVERY - (performance.now() - last)));
  };
  run.stop = () => clearTimeout(timer);
  return run;
}

// Dots over a picture. frame() tells where things are: toPixel(at), toValue(pixel) and nudge(at, across, up), all in the
// picture's own values; moved(name, at, settled) is called while a dot is held and once when it is let go.
export class Handles {
  constructor(host, dots, moved) {
    this.moved = moved;
    this.svg = node("svg", { class: "handles", role: "group", "aria-label": dots.map(({ name }) => name).join(" and ") });
    this.dots = new Map(dots.map(({ name, words, kind = "" }) => [name, { name, at: null, item: this.#dot(name, words, kind) }]));
    host.append(this.svg);
    this.svg.addEventListener("pointerdown", (event) => this.#press(event));
    this.svg.addEventListener("pointermove", (event) => this.held && this.#to(event, false));
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, (event) => this.#release(event));
  }

  #dot(name, words, kind) {
    const item = node("g", { class: `dot ${kind}`, tabindex: 0, role: "slider", "aria-label": words, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 },
      node("circle", { class: "hit", r: 24 }), node("circle", { class: "ring", r: 15 }), node("circle", { class: "edge", r: 10 }), node("circle", { class: "body", r: 8 }));
    item.addEventListener("keydown", (event) => this.#key(event, name));
    return item;
  }

  // where: {width, height, toPixel, toValue, nudge}.
  frame(where) {
    this.where = where;
    this.svg.setAttribute("viewBox", `0 0 ${where.width} ${where.height}`);
    if (!this.svg.childElementCount) this.svg.append(...[...this.dots.values()].map(({ item }) => item));
    for (const { name, at } of this.dots.values()) if (at) this.set(name, at);
  }

  set(name, at, spoken, share) {
    const dot = this.dots.get(name);
    dot.at = at;
    if (spoken) dot.item.setAttribute("aria-valuetext", spoken);
    if (share !== undefined) dot.item.setAttribute("aria-valuenow", Math.round(100 * clamp(share, 0, 1)));
    if (!this.where) return;
    const [x, y] = this.where.toPixel(at);
    dot.item.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }

  #pixel(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #press(event) {
    if (!this.where || event.button) return;
    const [x, y] = this.#pixel(event);
    if (!this.where.inside([x, y])) return;
    const far = (dot) => { const [a, b] = this.where.toPixel(dot.at); return Math.hypot(a - x, b - y); };
    this.held = [...this.dots.values()].filter(({ at }) => at).sort((a, b) => far(a) - far(b))[0];
    if (!this.held) return;
    this.svg.setPointerCapture(event.pointerId);
    this.held.item.classList.add("held");
    this.#to(event, false);
    event.preventDefault();
    this.held.item.focus({ preventScroll: true });
  }

  #to(event, settled) {
    const at = this.where.toValue(this.#pixel(event));
    this.set(this.held.name, at);
    this.moved(this.held.name, at, settled);
  }

  #release(event) {
    if (!this.held) return;
    this.held.item.classList.remove("held");
    if (event.type === "pointerup") this.#to(event, true);
    else this.moved(this.held.name, this.held.at, true);
    this.held = null;
  }

  #key(event, name) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key], dot = this.dots.get(name);
    if (!step || !dot.at || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 8 : 1, at = this.where.nudge(dot.at, step[0] * far, step[1] * far);
    this.set(name, at);
    this.moved(name, at, true);
    event.preventDefault();
  }
}

// A box of pictures below and of dots above: `under` is drawn anew, dots stay.
export function layered(className = "") {
  const under = element("div", { className: "box under" }), host = element("div", { className: `box layers ${className}` }, under);
  return { host, under };
}

// A picture of several layers in its figure, with a heading above and its sentence below.
export function framed(title, host, link) {
  const words = element("span"), heading = element("h2", { textContent: title });
  const figure = element("figure", { className: "picture" }, heading, host, element("figcaption", {}, element("p", {}, words, " ", link)));
  return { figure, heading, say: (text) => (words.textContent = text) };
}

// What the pictures say, beside them: where it comes from, a line, sentences, and rows of a table.
export function readingCard(name, ...more) {
  const meta = element("p", { className: "meta" }), heading = element("h1", { className: "outcome" }), say = element("p", { className: "say" });
  const card = element("aside", { className: "card" }, meta, heading, say, ...more);
  card.setAttribute("aria-label", name);
  return {
    element: card,
    show(about, title, sentences, kind = "") {
      meta.textContent = about;
      heading.className = `outcome ${kind}`;
      heading.textContent = title;
      say.textContent = sentences;
    },
    stopped(words) { this.show("", "This cannot be shown", words, "fails"); },
  };
}

export function figures(rows) {
  return rows.map((cells) => element("tr", {}, ...cells.map((words) => element("td", { textContent: words }))));
}
