// A surface on a canvas: quadrilaterals from back to front, colored by height, turned by hand.
import { clamp, linear, ramp } from "./draw.js";

const TALL = 0.62, DRAWN = 0.94; // height of the highest point beside the width of the floor; share of the canvas used

// plane: {x, y, z, path} with z[row][column] in steps; view: {turn, tilt} in degrees.
export function relief(canvas, plane, steps, { turn, tilt }) {
  const ratio = Math.min(2, window.devicePixelRatio || 1), w = canvas.clientWidth, h = canvas.clientHeight;
  Object.assign(canvas, { width: w * ratio, height: h * ratio });
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
  pen.scale(ratio, ratio);
  const project = projection(w, h, turn, tilt), { x, y, z } = plane;
  const across = linear(x[0], x.at(-1), -0.5, 0.5), away = linear(y[0], y.at(-1), -0.5, 0.5), up = (value) => (value / steps) * TALL;
  floor(pen, project, ink);
  const quads = [], colors = ramp("h");
  for (let r = 0; r + 1 < y.length; r++) for (let c = 0; c + 1 < x.length; c++) {
    const heights = [z[r][c], z[r][c + 1], z[r + 1][c + 1], z[r + 1][c]];
    if (heights.includes(null)) continue;
    const corners = [[x[c], y[r]], [x[c + 1], y[r]], [x[c + 1], y[r + 1]], [x[c], y[r + 1]]].map(([a, b], k) => project(across(a), away(b), up(heights[k])));
    quads.push({ corners, depth: corners.reduce((sum, p) => sum + p[2], 0), mean: heights.reduce((a, b) => a + b, 0) / 4 });
  }
  quads.sort((a, b) => a.depth - b.depth);
  Object.assign(pen, { lineWidth: x.length > 40 ? 0.3 : 0.6, lineJoin: "round", strokeStyle: ink("--paper") });
  for (const { corners, mean } of quads) {
    pen.beginPath();
    corners.forEach(([px, py], k) => pen[k ? "lineTo" : "moveTo"](px, py));
    pen.closePath();
    pen.fillStyle = `rgb(${colors[Math.round(255 * clamp(0.12 + (0.88 * mean) / steps, 0, 1))].join(",")})`;
    pen.fill();
    pen.stroke();
  }
  const height = (a, b) => up(sample(plane, a, b));
  if (plane.path) line(pen, plane.path.filter(([a, b]) => inside(x, a) && inside(y, b)).map(([a, b]) => project(across(a), away(b), height(a, b))), ink("--fails"), 2);
  marker(pen, project(across(0), away(0), height(0, 0)), ink);
  names(pen, project, plane.axes, ink);
}

// Places of a cube of width 1 on the canvas: x to the right, y away, z up; the third number grows towards the eye.
function projection(w, h, turn, tilt) {
  const a = (turn * Math.PI) / 180, b = (tilt * Math.PI) / 180, size = DRAWN * Math.min(w / 1.42, h / (1.42 * Math.sin(b) + TALL * Math.cos(b)));
  return (x, y, z) => {
    const right = x * Math.cos(a) - y * Math.sin(a), back = x * Math.sin(a) + y * Math.cos(a);
    const lift = (z - TALL / 2) * Math.cos(b) + back * Math.sin(b);
    return [w / 2 + size * right, h / 2 - size * lift, -back * Math.cos(b) + z * Math.sin(b)];
  };
}

function floor(pen, project, ink) {
  const corners = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]];
  line(pen, [...corners, corners[0]].map(([x, y]) => project(x, y, 0)), ink("--edge"), 1);
  const back = corners.map(([x, y]) => project(x, y, 0)).reduce((far, p, k, all) => (p[2] < all[far][2] ? k : far), 0);
  line(pen, [project(...corners[back], 0), project(...corners[back], TALL)], ink("--edge"), 1);
}

function names(pen, project, [across, away], ink) {
  Object.assign(pen, { fillStyle: ink("--ink-2"), font: "13px -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif", textAlign: "center" });
  const nearer = (one, other) => (one[2] > other[2] ? one : other);
  const put = (text, [x, y], [ox, oy]) => pen.fillText(text.length > 28 ? `${text.slice(0, 27)}…` : text, x + ox, y + oy);
  put(across, nearer(project(0, -0.5, 0), project(0, 0.5, 0)), [0, 22]);
  const side = nearer(project(-0.5, 0, 0), project(0.5, 0, 0));
  put(away, side, [0, 22]);
}

function marker(pen, [x, y], ink) {
  pen.beginPath();
  pen.arc(x, y, 5, 0, 2 * Math.PI);
  Object.assign(pen, { fillStyle: "#ffffff", strokeStyle: "#16191d", lineWidth: 2 });
  pen.fill();
  pen.stroke();
  Object.assign(pen, { fillStyle: ink("--ink"), strokeStyle: ink("--paper"), lineWidth: 3, textAlign: "left", font: "12px -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif" });
  pen.strokeText("the network", x + 9, y + 4);
  pen.fillText("the network", x + 9, y + 4);
}

function line(pen, points, color, width) {
  if (points.length < 2) return;
  pen.beginPath();
  points.forEach(([x, y], k) => pen[k ? "lineTo" : "moveTo"](x, y));
  Object.assign(pen, { strokeStyle: color, lineWidth: width });
  pen.stroke();
}

const inside = (axis, value) => value >= Math.min(axis[0], axis.at(-1)) && value <= Math.max(axis[0], axis.at(-1));

// The height at a place, bilinear; where a corner is missing, the lowest step.
function sample({ x, y, z }, a, b) {
  const at = (axis, value) => { const k = clamp(linear(axis[0], axis.at(-1), 0, axis.length - 1)(value), 0, axis.length - 1), below = Math.min(Math.floor(k), axis.length - 2); return [below, k - below]; };
  const [i, s] = at(x, a), [j, t] = at(y, b), v = (r, c) => z[r][c] ?? 0;
  return (1 - t) * ((1 - s) * v(j, i) + s * v(j, i + 1)) + t * ((1 - s) * v(j + 1, i) + s * v(j + 1, i + 1));
}
