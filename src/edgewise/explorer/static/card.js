// The verdict beside the map: every sentence comes from the server, which has them from where the shell has them.
import { $, clamp, element, glyph, label, linear, node, polyline } from "./draw.js";

export function showVerdict(answer, milliseconds) {
  $("card").classList.remove("waiting");
  $("meta").textContent = `${answer.title} · ${answer.method}${milliseconds === null ? "" : `, ${(milliseconds / 1000).toFixed(2)} s`}`;
  $("outcome").className = `outcome ${answer.kind}`;
  $("outcome").replaceChildren(glyph(answer.kind), answer.outcome);
  $("chance").textContent = [answer.chance, answer.unlike].filter(Boolean).join(" ");
  $("say").textContent = answer.sentences;
  $("code").textContent = answer.code;
}

// rows: {change, note, then, kind, act}; at most three places, always of the same height.
export function showFixes(title, rows, advice = "") {
  $("fixes-title").textContent = title;
  const items = rows.slice(0, 3).map(({ change, note, then, kind, act }) => {
    const words = element("span", { className: "what" }, element("code", { textContent: change }), element("small", { textContent: note }));
    const end = then ? element("span", { className: `then ${kind}` }, glyph(kind), then) : "";
    if (act) return element("li", {}, element("button", { type: "button", className: "fix", onclick: act }, words, end));
    return element("li", {}, element("div", { className: "fix" }, words, end));
  });
  if (!items.length && advice) items.push(element("li", { className: "advice", textContent: advice }));
  $("fixes").replaceChildren(...items);
}

const PICTURES = [
  ["overlap", "Overlap, cosine", (v) => v, 0, 1, ["0", "0.5", "1"]],
  ["gradient", "Gradient, last = 1", Math.log10, -2, 2, ["0.01", "1", "100"]],
  ["norm", "Norm, rms", Math.log10, -1, 1, ["0.1", "1", "10"]],
];

// Fixed scales, so that two places of the dot can be compared by eye; what lies outside is drawn at the border.
// drawn: the same three rows of a random network, as circles.
export function showCurves(curves, after, drawn = null) {
  $("curves").replaceChildren(...PICTURES.map(([name, title, scale, low, high, words]) => {
    const values = curves[name], width = 84, top = 30, bottom = 96;
    const x = linear(0, Math.max(1, values.length - 1), 1, width), y = (v) => linear(low, high, bottom, top)(clamp(v === null || v <= 0 && scale !== PICTURES[0][2] ? low : scale(v), low, high));
    const path = (row, kind) => polyline(row.map((v, k) => [x(k), y(v)]), kind);
    const digits = (v) => (v === null ? "beyond numbers" : v.toPrecision(3));
    const svg = node("svg", { viewBox: "0 0 120 118", role: "img", "aria-label": values.length ? `${title}: ${digits(values[0])} at the input, ${digits(values.at(-1))} at the output` : `${title}: not observed` },
      label(0, 14, title, { class: "small" }));
    words.forEach((word, k) => {
      const at = bottom - (k * (bottom - top)) / 2;
      svg.append(node("line", { class: "base", x1: 0, x2: width, y1: at, y2: at }), label(width + 6, at + 4, word, { class: "tick" }));
    });
    svg.append(label(0, 112, "0", { class: "tick" }), label(width, 112, `${values.length - 1} blocks`, { class: "tick", "text-anchor": "end" }));
    if (after?.[name]?.length) svg.append(path(after[name], "after"));
    if (values.length) svg.append(path(values, "curve"));
    const every = Math.max(1, Math.round((drawn?.[name].length ?? 0) / 12)); // a dozen circles can be told apart
    drawn?.[name].forEach((v, k) => k % every === 0 && svg.append(node("circle", { class: "drawn", cx: x(k).toFixed(1), cy: y(v).toFixed(1), r: 2.6 })));
    if (after && name === "overlap") {
      const end = y(after.overlap.at(-1)), high = end < (top + bottom) / 2;
      svg.append(label(width, high ? end + 14 : end - 6, "after fix", { class: "after-label", "text-anchor": "end" }));
    }
    return svg;
  }));
}

export function showWaiting(meta, title, words) {
  $("card").classList.add("waiting");
  $("meta").textContent = meta;
  $("outcome").className = "outcome undecided";
  $("outcome").replaceChildren(title);
  $("chance").textContent = words;
  $("say").textContent = "";
  $("code").hidden = true;
  $("code-button").setAttribute("aria-expanded", "false");
  $("drawn-note").textContent = "";
}
