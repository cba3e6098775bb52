// Pictures with axes: a frame with ticks and units, curves, bands, heat maps, and the sentence under them.
import { clamp, element, label, linear, node, polyline, ramp, ticks, whenChanged } from "./draw.js";

// A link to the theory page, which is served beside this one; `section` is the name of one of its headings.
export function why(section, words = "Why?") {
  return element("a", { className: "why", href: `theory.html#${section}`, textContent: words });
}

// A picture in a box of a fixed height with its sentence below. draw(box) fills it, and again when size or theme change.
export function picture({ title = "", name, height, caption, section, draw, signal }) {
  const box = element("div", { className: "box" });
  box.style.height = `${height}px`;
  const words = element("span", { textContent: caption });
  const figure = element("figure", { className: "picture" }, ...(title ? [element("h2", { textContent: title })] : []), box, element("figcaption", {}, element("p", {}, words, " ", why(section))));
  figure.setAttribute("aria-label", name);
  const redraw = () => box.clientWidth && draw(box);
  whenChanged(box, redraw, signal);
  return { figure, box, redraw, say: (text) => (words.textContent = text) };
}

// axis: {low, high, log, label, unit, count, format}. Returns the places of values (sx, sy), the inner box and the svg.
export function axes(box, { x, y, name, margin = {} }) {
  const w = box.clientWidth, h = box.clientHeight, phone = w < 480;
  const inner = { left: margin.left ?? (phone ? (y.label ? 60 : 46) : 64), right: w - (margin.right ?? 12), top: margin.top ?? 10, bottom: h - (margin.bottom ?? (x.label ? 50 : 24)) };
  const svg = node("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": name ?? "" });
  box.replaceChildren(svg);
  const plot = { svg, inner, phone, box, sx: scale(x, inner.left, inner.right), sy: scale(y, inner.bottom, inner.top), x, y };
  const { left, right, top, bottom } = inner;
  for (const value of marks(y, margin.rows ?? (phone ? 3 : 5))) {
    const at = plot.sy(value);
    svg.append(node("line", { class: "base", x1: left, x2: right, y1: at, y2: at }), label(left - 8, at + 4, spell(y, value), { class: "tick", "text-anchor": "end" }));
  }
  for (const value of marks(x, margin.columns ?? (phone ? 4 : 8))) {
    const at = plot.sx(value), anchor = at > right - 12 ? "end" : at < left + 8 ? "start" : "middle";
    svg.append(node("line", { class: "tickline", x1: at, x2: at, y1: bottom, y2: bottom + 4 }), label(at, bottom + 18, spell(x, value), { class: "tick", "text-anchor": anchor }));
  }
  if (x.label) svg.append(titled(label(left, bottom + 42, x.label, { class: "axis" }), x));
  if (y.label) svg.append(titled(label(0, 0, y.label, { class: "axis", transform: `translate(${phone ? 10 : 16} ${bottom}) rotate(-90)` }), phone ? {} : y));
  return plot;
}

function titled(text, { unit }) {
  if (unit) text.append(node("tspan", { class: "unit", dx: 8 }, unit));
  return text;
}

const scale = ({ low, high, log }, from, to) => (log ? (value) => linear(Math.log(low), Math.log(high), from, to)(Math.log(value)) : linear(low, high, from, to));

// Powers of ten on a logarithmic axis, with 2 and 5 times them where there is room; whole steps on a linear one.
function marks({ low, high, log, values, count }, most) {
  if (values) return values;
  if (!log) return ticks(low, high, count ?? most);
  const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / most));
  const fine = [[1, 2, 5], [1, 3], [1]].find((factors) => factors.length * decades <= 1.5 * most) ?? [1], result = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high) + 1e-9; k++) {
    if (k % every === 0) for (const factor of fine) result.push(+(factor * 10 ** k).toPrecision(6));
  }
  return result.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

export function spell({ format }, value) {
  return format ? format(value) : number(value);
}

// 12 000, 0.05, 10⁻⁷ as people write them.
export function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) {
    const [front, power] = value.toExponential(1).replace(".0", "").split("e"), raised = [...String(+power)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
    return front === "1" ? `10${raised}` : `${front} × 10${raised}`;
  }
  const text = size >= 1000 ? String(Math.round(value)) : String(+value.toPrecision(3));
  return size >= 10000 ? text.replace(/\B(?=(\d{3})+$)/g, "\u2009") : text;
}

// points: [x, y] in the units of the axes; a place where y is null or not finite interrupts the line.
export function curve(plot, points, kind = "curve") {
  const pieces = [[]];
  for (const [x, y] of points) {
    if (y === null || !Number.isFinite(y) || (plot.y.log && y <= 0)) pieces.push([]);
    else pieces.at(-1).push([plot.sx(x), clamp(plot.sy(y), plot.inner.top - 4, plot.inner.bottom + 4)]);
  }
  for (const piece of pieces) if (piece.length) plot.svg.append(polyline(piece.length > 1 ? piece : [piece[0], piece[0]], kind));
}

// points: [x, low, high].
export function band(plot, points, kind = "band") {
  const whole = points.filter(([, low, high]) => Number.isFinite(low) && Number.isFinite(high) && low !== null && high !== null);
  if (whole.length < 2) return;
  const up = whole.map(([x, low]) => [plot.sx(x), plot.sy(low)]), down = whole.map(([x, , high]) => [plot.sx(x), plot.sy(high)]).reverse();
  plot.svg.append(polyline([...up, ...down], kind));
}

// Words at the end of lines, moved apart where they would touch. rows: {y, words, kind} with y in pixels.
export function endLabels(plot, rows, x = plot.inner.right + 8) {
  const sorted = [...rows].sort((a, b) => a.y - b.y), gap = 16;
  sorted.forEach((row, k) => (row.y = Math.max(row.y, k ? sorted[k - 1].y + gap : plot.inner.top)));
  const over = Math.max(0, (sorted.at(-1)?.y ?? 0) - plot.inner.bottom);
  for (const { y, words, kind = "" } of sorted) plot.svg.append(label(x, y - over + 4, words, { class: `small ${kind}` }));
}

// rows[r][c] from below; cells where a value is null stay empty. Columns may be at any places: edges has one more than they are.
export function heat(plot, rows, { low, high, log = false, colors = ramp("h"), edges = null }) {
  const { left, right, top, bottom } = plot.inner, ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = Math.max(1, Math.round((right - left) * ratio)), height = Math.max(1, Math.round((bottom - top) * ratio));
  const canvas = element("canvas", { width, height });
  canvas.setAttribute("aria-hidden", "true");
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
  const pen = canvas.getContext("2d"), place = log ? (v) => linear(Math.log(low), Math.log(high), 0, 255)(Math.log(Math.max(v, low))) : linear(low, high, 0, 255);
  const columns = rows[0]?.length ?? 0, at = (c) => (edges ? (plot.sx(edges[c]) - left) * ratio : (c * width) / columns);
  rows.forEach((row, r) => {
    const y = height - ((r + 1) * height) / rows.length, tall = height / rows.length + 1;
    row.forEach((value, c) => {
      if (value === null || Number.isNaN(value)) return;
      pen.fillStyle = `rgb(${colors[clamp(Math.round(place(value)), 0, 255)].join(",")})`;
      pen.fillRect(Math.floor(at(c)), Math.floor(y), Math.ceil(at(c + 1) - at(c)) + 1, Math.ceil(tall));
    });
  });
  plot.box.prepend(canvas);
  return canvas;
}

// A bar of colors with its ends in words, on the right of a heat map.
export function heatScale(plot, { low, high, colors = ramp("h"), format = (value) => number(+value.toPrecision(2)) }) {
  const { right, top, bottom } = plot.inner, x = right + 12, tall = bottom - top;
  for (let k = 0; k < 64; k++) plot.svg.append(node("rect", { x, y: bottom - ((k + 1) * tall) / 64, width: 8, height: tall / 64 + 0.6, fill: `rgb(${colors[Math.round((k / 63) * 255)].join(",")})` }));
  plot.svg.append(label(x + 14, top + 10, format(high), { class: "tick" }), label(x + 14, bottom, format(low), { class: "tick" }));
}
