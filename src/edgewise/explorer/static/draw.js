// SVG nodes, scales and colors, shared by the pictures.
const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function node(name, attributes = {}, ...children) {
  const item = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) item.setAttribute(key, value);
  item.append(...children);
  return item;
}

export function element(name, properties = {}, ...children) {
  const item = Object.assign(document.createElement(name), properties);
  item.append(...children);
  return item;
}

// Markup that stands in a module; never words that came from elsewhere.
export const fragment = (text) => document.createRange().createContextualFragment(text);

// Draw again when the box has another size, or the system another theme, until `signal` says stop.
export function whenChanged(box, draw, signal) {
  const observer = new ResizeObserver(() => draw());
  observer.observe(box);
  signal?.addEventListener("abort", () => observer.disconnect());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(), { signal });
}

export const label = (x, y, words, attributes = {}) => node("text", { x, y, ...attributes }, words);

export function polyline(points, kind) {
  const steps = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  return node("path", { class: kind, d: `M${steps}` });
}

export const linear = (a, b, from, to) => (value) => from + ((value - a) / (b - a)) * (to - from);

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Whole steps of 1, 2 or 5 between two ends.
export function ticks(low, high, count) {
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((factor) => factor * unit >= rough) ?? 10);
  const first = Math.ceil(low / step - 1e-9) * step, values = [];
  for (let k = 0; first + k * step <= high + 1e-9 * step; k++) values.push(+(first + k * step).toPrecision(10));
  return values;
}

// 256 colors between the five stops `--NAME0` to `--NAME4` of the stylesheet: "p" is the share of networks that
// trained, from none to all; "h" is less to more of anything else.
export function ramp(name) {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3, 4].map((k) => {
    const hex = style.getPropertyValue(`--${name}${k}`).trim();
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  });
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * 4, k = Math.min(3, Math.floor(at));
    return stops[k].map((value, c) => Math.round(value + (at - k) * (stops[k + 1][c] - value)));
  });
}

export const shareColors = () => ramp("p");

// A shape for every outcome, so that color is never alone.
export function glyph(kind) {
  const ring = { cx: 10, cy: 10, r: 8 };
  const shapes = {
    trains: () => [node("circle", { class: "full", cx: 10, cy: 10, r: 8.6 })],
    risky: () => [node("circle", ring), node("path", { class: "full", d: "M10 2a8 8 0 0 1 0 16z" })],
    fails: () => [node("circle", ring), node("path", { d: "M4.6 15.4 15.4 4.6" })],
    undecided: () => [node("circle", { ...ring, "stroke-dasharray": "3 3" })],
  };
  return node("svg", { viewBox: "0 0 20 20", class: "glyph", "aria-hidden": "true" }, ...(shapes[kind] ?? shapes.undecided)());
}
