// The phase diagram: colors on a canvas, lines and words in SVG above it, the model as a dot that can be moved.
import { $, clamp, element, label, linear, node, polyline, shareColors, ticks, whenChanged } from "./draw.js";

const GOOD = 0.85; // share from which a place is called a fix

export class Plane {
  constructor(onMove, signal) {
    this.onMove = onMove;
    this.map = null;
    this.axes = null;
    this.dot = this.#makeDot();
    const over = $("over");
    over.addEventListener("pointerdown", (event) => this.#press(event));
    over.addEventListener("pointermove", (event) => this.held && this.#to(event, false));
    for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, (event) => this.#release(event));
    whenChanged($("plotbox"), () => this.draw(), signal);
  }

  // axes: {x, y} with knob, label, low, high; at and home: {x, y}.
  place(axes, at, home) {
    Object.assign(this, { axes, at, home, map: null });
    this.draw();
  }

  show(map, coarse) {
    Object.assign(this, { map, coarse });
    this.draw();
  }

  move(at, settled) {
    const { x, y } = this.axes;
    this.at = { x: clamp(at.x, x.low, x.high), y: clamp(at.y, y.low, y.high) };
    this.drawDot();
    this.onMove(this.at, settled);
  }

  share(at) {
    const { x, y, share } = this.map, fx = this.#fraction(at.x, x), fy = this.#fraction(at.y, y);
    const i = Math.min(Math.floor(fx), x.count - 2), j = Math.min(Math.floor(fy), y.count - 2), s = fx - i, t = fy - j;
    const v = (a, b) => share[b * x.count + a] / 1000;
    return (1 - t) * ((1 - s) * v(i, j) + s * v(i + 1, j)) + t * ((1 - s) * v(i, j + 1) + s * v(i + 1, j + 1));
  }

  #fraction(value, axis) {
    return clamp(((value - axis.low) / (axis.high - axis.low)) * (axis.count - 1), 0, axis.count - 1);
  }

  // The nearest place where most networks train; one knob alone where that suffices.
  fix() {
    if (!this.map || this.coarse || this.share(this.at) >= GOOD) return null;
    const { x, y, share } = this.map, fx = this.#fraction(this.at.x, x), fy = this.#fraction(this.at.y, y);
    const value = (axis, k) => axis.low + ((axis.high - axis.low) * k) / (axis.count - 1);
    const round = (v) => +v.toPrecision(3);
    const good = (at) => this.share(at) >= GOOD;
    const alone = [];
    for (let i = 0; i < x.count; i++) alone.push({ at: { x: round(value(x, i)), y: this.at.y }, far: Math.abs(i - fx) });
    for (let j = 1; j < y.count; j++) alone.push({ at: { x: this.at.x, y: round(value(y, j)) }, far: Math.abs(j - fy) });
    const single = alone.filter(({ at }) => good(at)).sort((a, b) => a.far - b.far)[0];
    if (single) return single.at;
    let best = null, least = Infinity;
    for (let j = 1; j < y.count; j++) for (let i = 0; i < x.count; i++) {
      const far = Math.hypot(i - fx, j - fy);
      if (share[j * x.count + i] >= 1000 * GOOD && far < least) [least, best] = [far, { x: round(value(x, i)), y: round(value(y, j)) }];
    }
    return best;
  }

  draw() {
    const box = $("plotbox"), over = $("over");
    const w = box.clientWidth, h = box.clientHeight, phone = w < 480;
    if (!w) return;
    this.inner = { left: phone ? 46 : 64, right: w - (phone ? 6 : 10), top: 8, bottom: h - 56 };
    over.replaceChildren();
    over.setAttribute("viewBox", `0 0 ${w} ${h}`);
    const { left, right, top, bottom } = this.inner;
    Object.assign($("state").style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    this.#canvas();
    if (!this.axes) return void over.append(node("rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top }));
    const { x, y } = this.axes;
    this.sx = linear(x.low, x.high, left, right);
    this.sy = linear(y.low, y.high, bottom, top);
    this.#ticks(phone);
    if (this.map) this.#lines(phone);
    this.moving = node("g");
    over.append(this.moving);
    this.drawDot();
  }

  #ticks(phone) {
    const over = $("over"), { left, right, top, bottom } = this.inner, { x, y } = this.axes;
    over.append(node("rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top }));
    for (const value of ticks(x.low, x.high, phone ? 3 : 6)) {
      const at = this.sx(value), anchor = at > right - 12 ? "end" : at < left + 8 ? "start" : "middle";
      over.append(node("line", { class: "tickline", x1: at, x2: at, y1: bottom, y2: bottom + 4 }), label(at, bottom + 18, value, { class: "tick", "text-anchor": anchor }));
    }
    for (const value of ticks(y.low, y.high, phone ? 3 : 5)) {
      const at = this.sy(value);
      over.append(node("line", { class: "tickline", x1: left - 4, x2: left, y1: at, y2: at }), label(left - 8, at + 4, value, { class: "tick", "text-anchor": "end" }));
    }
    const across = label(left, bottom + 42, x.label, { class: "axis" });
    across.append(node("tspan", { class: "unit", dx: 8 }, x.knob));
    const up = label(0, 0, y.label, { class: "axis", transform: `translate(${phone ? 10 : 16} ${bottom}) rotate(-90)` });
    if (!phone) up.append(node("tspan", { class: "unit", dx: 8 }, y.knob));
    over.append(across, up);
  }

  #lines(phone) {
    const over = $("over"), at = ([a, b]) => [this.sx(a), this.sy(b)];
    const layers = [["iso", this.map.levels["0.25"]], ["iso", this.map.levels["0.75"]], ["crit", this.map.lines.angle], ["crit dash", this.map.lines.gradient]];
    for (const [kind, lines] of layers) for (const line of lines) over.append(polyline(line.map(at), kind));
    const words = [[this.map.lines.angle, phone ? "tokens steady" : "tokens neither merge nor separate"], [this.map.lines.gradient, phone ? "gradient steady" : "gradient neither grows nor fades"]];
    for (const [lines, text] of words) this.#along(lines.map((line) => line.map(at)), text);
    if (phone || this.coarse) return;
    for (const [level, text] of [["0.25", "25\u00a0% train"], ["0.75", "75\u00a0% train"]]) {
      const line = longest(this.map.levels[level].map((each) => each.map(at)));
      if (!line || extent(line) < 80) continue;
      const spot = line[Math.floor(line.length * 0.35)];
      const end = spot[0] > this.inner.right - 80;
      over.append(label(spot[0] + (end ? -6 : 6), clamp(spot[1] - 6, this.inner.top + 14, this.inner.bottom - 6), text, { class: "on small", "text-anchor": end ? "end" : "start" }));
    }
  }

  // Words along the longest piece of a line, where there is room for them.
  #along(lines, text) {
    const line = longest(lines);
    if (!line || extent(line) < 7 * text.length) return;
    const middle = Math.floor(line.length * 0.6), reach = Math.max(1, Math.floor(line.length / 12));
    let [a, b] = [line[Math.max(0, middle - reach)], line[Math.min(line.length - 1, middle + reach)]];
    if (a[0] > b[0]) [a, b] = [b, a];
    const angle = (Math.atan2(b[1] - a[1], b[0] - a[0]) * 180) / Math.PI, [x, y] = line[middle];
    const steep = Math.abs(angle) > 80, half = 3.2 * text.length;
    const cx = steep ? x : clamp(x, this.inner.left + half, this.inner.right - half), cy = steep ? clamp(y, this.inner.top + half, this.inner.bottom - half) : y;
    $("over").append(label(0, -7, text, { class: "on", "text-anchor": "middle", transform: `translate(${cx.toFixed(1)} ${cy.toFixed(1)}) rotate(${(steep ? -90 : angle).toFixed(1)})` }));
  }

  #canvas() {
    const heat = $("heat"), { left, right, top, bottom } = this.inner, ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(2, Math.round((right - left) * ratio)), height = Math.max(2, Math.round((bottom - top) * ratio));
    Object.assign(heat, { width, height });
    Object.assign(heat.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    if (!this.map) return;
    const image = new ImageData(width, height), colors = shareColors(), { x, y, share } = this.map;
    const columns = axisSteps(width, x.count, this.coarse), rows = axisSteps(height, y.count, this.coarse);
    for (let r = 0; r < height; r++) {
      const [j, t] = rows[height - 1 - r];
      for (let c = 0; c < width; c++) {
        const [i, s] = columns[c], k = j * x.count + i, right_ = s ? 1 : 0, up = t ? x.count : 0;
        const value = (1 - t) * ((1 - s) * share[k] + s * share[k + right_]) + t * ((1 - s) * share[k + up] + s * share[k + up + right_]);
        const [red, green, blue] = colors[Math.round((value / 1000) * 255)], p = 4 * (r * width + c);
        image.data[p] = red; image.data[p + 1] = green; image.data[p + 2] = blue; image.data[p + 3] = 255;
      }
    }
    heat.getContext("2d").putImageData(image, 0, 0);
  }

  #makeDot() {
    const words = "Your model on the map. Arrow keys move it, with Shift further; F goes to the nearest fix, Home back.";
    const dot = node("g", { class: "dot", tabindex: 0, role: "slider", "aria-label": words, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 },
      node("circle", { class: "hit", r: 24 }), node("circle", { class: "ring", r: 15 }), node("circle", { class: "edge", r: 10 }), node("circle", { class: "body", r: 8 }));
    dot.addEventListener("keydown", (event) => this.#key(event));
    return dot;
  }

  drawDot() {
    if (!this.moving || !this.at) return;
    const at = [this.sx(this.at.x), this.sy(this.at.y)], home = [this.sx(this.home.x), this.sy(this.home.y)], fix = this.fix();
    const parts = [];
    const side = (x) => (x > this.inner.right - 90 ? { dx: -16, "text-anchor": "end" } : { dx: 16 });
    if (Math.hypot(home[0] - at[0], home[1] - at[1]) > 14) parts.push(node("circle", { class: "origin", cx: home[0], cy: home[1], r: 5 }), label(home[0], home[1] - 8, "as given", { class: "on small", ...side(home[0]) }));
    else parts.push(label(at[0], at[1] + 4, "your model", { class: "on small", ...side(at[0]) }));
    if (fix) {
      const to = [this.sx(fix.x), this.sy(fix.y)], far = Math.hypot(to[0] - at[0], to[1] - at[1]);
      const toward = (k) => [at[0] + ((to[0] - at[0]) * k) / far, at[1] + ((to[1] - at[1]) * k) / far];
      if (far > 36) parts.push(polyline([toward(14), toward(far - 9)], "trail"));
      parts.push(node("circle", { class: "target", cx: to[0], cy: to[1], r: 6 }), node("circle", { class: "target-in", cx: to[0], cy: to[1], r: 2 }));
      const level = Math.abs(to[1] - at[1]) < 24 && Math.abs(to[0] - at[0]) < 170; // beside each other, words would touch
      if (far > 36) parts.push(label(to[0], to[1] + (level ? 24 : 4), "nearest fix", { class: "on small", ...(level ? { dx: -8 } : side(to[0])) }));
    }
    this.dot.setAttribute("transform", `translate(${at[0].toFixed(1)} ${at[1].toFixed(1)})`);
    const focused = document.activeElement === this.dot;
    this.moving.replaceChildren(...parts, this.dot);
    if (focused) this.dot.focus({ preventScroll: true });
  }

  speak(words, share) {
    this.dot.setAttribute("aria-valuenow", share === null ? 0 : Math.round(100 * share));
    this.dot.setAttribute("aria-valuetext", words);
  }

  #press(event) {
    if (!this.axes || event.button) return;
    const { left, right, top, bottom } = this.inner, box = $("over").getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (x < left - 12 || x > right + 12 || y < top - 12 || y > bottom + 12) return;
    this.held = true;
    $("over").setPointerCapture(event.pointerId);
    this.dot.classList.add("held");
    this.#to(event, false);
    event.preventDefault();
    this.dot.focus({ preventScroll: true });
  }

  #release(event) {
    if (!this.held) return;
    this.held = false;
    this.dot.classList.remove("held");
    if (event.type === "pointerup") this.#to(event, true);
    else this.move(this.at, true);
  }

  #to(event, settled) {
    const box = $("over").getBoundingClientRect(), { left, right, top, bottom } = this.inner, { x, y } = this.axes;
    const round = (value, axis) => +value.toFixed(Math.max(0, 3 - Math.ceil(Math.log10(axis.high - axis.low))));
    this.move({ x: round(linear(left, right, x.low, x.high)(event.clientX - box.left), x), y: round(linear(bottom, top, y.low, y.high)(event.clientY - box.top), y) }, settled);
  }

  #key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }, step = steps[event.key];
    const { x, y } = this.axes ?? {};
    if (!x || event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) {
      const cells = event.shiftKey ? 8 : 1, unit = (axis) => (cells * (axis.high - axis.low)) / 63;
      this.move({ x: +(this.at.x + step[0] * unit(x)).toPrecision(4), y: +(this.at.y + step[1] * unit(y)).toPrecision(4) }, true);
    } else if (event.key === "Home") this.move(this.home, true);
    else if (event.key.toLowerCase() === "f" && this.fix()) this.move(this.fix(), true);
    else return;
    event.preventDefault();
  }
}

// For every pixel the node below it and how far it is to the next; flat cells while the map is coarse.
function axisSteps(pixels, count, flat) {
  return Array.from({ length: pixels }, (_, k) => {
    const at = (k / (pixels - 1)) * (count - 1);
    if (flat) return [Math.round(at), 0];
    const below = Math.min(Math.floor(at), count - 2);
    return [below, at - below];
  });
}

const extent = (line) => Math.hypot(...[0, 1].map((c) => Math.max(...line.map((p) => p[c])) - Math.min(...line.map((p) => p[c]))));
const longest = (lines) => lines.reduce((best, line) => (!best || extent(line) > extent(best) ? line : best), null);

export function drawScale() {
  const colors = shareColors(), box = $("scale"), width = Math.min(420, Math.max(200, box.clientWidth - 80));
  const svg = node("svg", { viewBox: `0 0 ${width} 44`, width, height: 44 }, label(0, 12, "share of such networks that trained", { class: "axis" }));
  for (let k = 0; k < 64; k++) svg.append(node("rect", { x: (k * width) / 64, y: 18, width: width / 64 + 0.5, height: 8, fill: `rgb(${colors[Math.round((k / 63) * 255)].join(",")})` }));
  for (const [share, anchor] of [[0, "start"], [25, "middle"], [50, "middle"], [75, "middle"], [100, "end"]]) svg.append(label((share / 100) * width, 40, `${share}\u00a0%`, { class: "tick", "text-anchor": anchor }));
  box.replaceChildren(svg);
}

export function message(kind, title, words, ...actions) {
  const box = $("state");
  box.className = `state ${kind}`;
  box.replaceChildren(element("h2", { textContent: title }), element("p", { textContent: words }), ...actions);
  box.hidden = false;
}
