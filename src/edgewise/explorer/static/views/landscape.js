// Landscapes: stored planes of a loss as surfaces, one or two on equal scales, turned together.
import { json, newest } from "../api.js";
import { number, why } from "../chart.js";
import { figures, readingCard, Sliders } from "../controls.js";
import { clamp, element, label, node, ramp, whenChanged } from "../draw.js";
import { relief } from "../relief.js";

export const title = "Landscape";

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop, ask = newest(signal);
  const angle = (text, otherwise, low, high) => (text !== undefined && text !== "" && Number.isFinite(+text) ? clamp(+text, low, high) : otherwise);
  const view = { turn: angle(address.turn, 35, -180, 180), tilt: angle(address.tilt, 44, 5, 85) }, chosen = { left: address.left ?? "", right: address.right ?? "" };
  let answer = null, listing = null;

  const selects = { left: element("select", { id: "left" }), right: element("select", { id: "right" }) };
  const sliders = new Sliders((knob, value, settled) => { view[knob] = value; redraw(); if (settled) remember(); });
  const fold = element("details", { className: "fold", open: !matchMedia("(max-width: 760px)").matches }, element("summary", { textContent: "Planes and view" }),
    element("div", { className: "group" }, element("label", { className: "label", htmlFor: "left", textContent: "Left" }), selects.left),
    element("div", { className: "group" }, element("label", { className: "label", htmlFor: "right", textContent: "Right" }), selects.right), sliders.element);
  const panel = element("aside", { className: "panel" }, fold);
  panel.setAttribute("aria-label", "Planes and view");
  const pair = element("div", { className: "reliefs" }), scale = element("div", { className: "scale" }), words = element("span");
  const state = element("div", { className: "state", hidden: true });
  const figure = element("figure", { className: "picture" }, element("div", { className: "stage" }, pair, state), scale, element("figcaption", {}, element("p", {}, words, " ", why("landscapes"))));
  const card = readingCard("What the surfaces mean");
  const tables = element("div");
  card.element.append(tables);
  root.append(panel, figure, card.element);
  for (const name of ["left", "right"]) selects[name].addEventListener("change", () => { chosen[name] = selects[name].value; question(); });
  whenChanged(pair, () => redraw(), signal);

  async function question() {
    const planes = [...new Set([chosen.left, chosen.right].filter(Boolean))];
    if (!planes.length) {
      ask.stop();  // a late answer would draw a plane that is no longer chosen
      return empty();
    }
    if (!answer) message("", "Drawing the surfaces …", "They are computed on this machine.");
    try {
      const next = await ask("landscape", { planes });
      if (!next) return;
      answer = next;
      show();
      remember();
    } catch (error) {
      answer = null;
      pair.replaceChildren();
      tables.replaceChildren();
      message("error", "This plane cannot be shown", error.message);
      card.show("", "No surface", "Choose another plane on the left.", "");
    }
  }

  function show() {
    state.hidden = true;
    words.textContent = answer.caption;
    card.show(`${answer.planes.length === 1 ? "one plane" : "two planes, equal scales"} · loss ${number(answer.low)} to ${number(answer.high)}`, answer.title, answer.sentences);
    pair.className = `reliefs ${answer.planes.length === 2 ? "two" : ""}`;
    pair.replaceChildren(...answer.planes.map((plane) => element("div", {}, element("h2", { textContent: plane.name }), surface(plane))));
    tables.replaceChildren(...answer.planes.flatMap((plane) => [element("h2", { textContent: plane.name }), element("table", { className: "figures" }, ...figures(plane.figures)), ...(plane.note ? [element("p", { className: "hint", textContent: plane.note })] : [])]));
    if (!listing.planes.length) tables.append(element("h2", { textContent: "Your own planes" }), element("p", { textContent: listing.empty }), code());
    sliders.show([{ knob: "turn", label: "turn", low: -180, high: 180, step: 1, value: view.turn, format: (v) => `${v}°` }, { knob: "tilt", label: "tilt", low: 5, high: 85, step: 1, value: view.tilt, format: (v) => `${v}°` }]);
    drawScale();
    redraw();
  }

  function surface(plane) {
    const canvas = element("canvas", { className: "relief", tabIndex: 0 });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Surface of ${plane.name}: ${plane.figures.map(([name, value]) => `${name} ${value}`).join(", ")}. Arrow keys turn it.`);
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      turn((event.clientX - held[0]) * 0.4, (event.clientY - held[1]) * 0.3);
      held = [event.clientX, event.clientY];
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; remember(); });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-5, 0], ArrowRight: [5, 0], ArrowUp: [0, -5], ArrowDown: [0, 5] }[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      turn(...step);
      remember();
    });
    return canvas;
  }

  function turn(across, up) {
    view.turn = Math.round(((view.turn + across + 540) % 360) - 180);
    view.tilt = Math.round(clamp(view.tilt + up, 5, 85));
    sliders.show([{ knob: "turn", label: "turn", low: -180, high: 180, step: 1, value: view.turn, format: (v) => `${v}°` }, { knob: "tilt", label: "tilt", low: 5, high: 85, step: 1, value: view.tilt, format: (v) => `${v}°` }]);
    redraw();
  }

  function redraw() {
    if (!answer) return;
    [...pair.querySelectorAll("canvas")].forEach((canvas, k) => canvas.clientWidth && relief(canvas, answer.planes[k], answer.steps, view));
  }

  function drawScale() {
    const colors = ramp("h"), width = 280, svg = node("svg", { viewBox: `0 0 ${width} 44`, width, height: 44, "aria-hidden": "true" }, label(0, 12, "loss, the same for both", { class: "axis" }));
    for (let k = 0; k < 64; k++) svg.append(node("rect", { x: (k * width) / 64, y: 18, width: width / 64 + 0.5, height: 8, fill: `rgb(${colors[Math.round(255 * (0.12 + (0.88 * k) / 63))].join(",")})` }));
    svg.append(label(0, 40, number(answer.low), { class: "tick" }), label(width, 40, number(answer.high), { class: "tick", "text-anchor": "end" }));
    scale.replaceChildren(svg);
  }

  // The examples are listed once they are shown: a folder with planes of one's own needs none.
  function offer() {
    const shown = listing.examples.some((name) => name === chosen.left || name === chosen.right) ? listing.examples.map((name) => ({ name, note: "comes with edgewise" })) : [];
    for (const [name, select] of Object.entries(selects)) {
      select.replaceChildren(...[{ name: "", words: name === "left" ? "choose a plane" : "none" }, ...listing.planes, ...shown].map((plane) => element("option", { value: plane.name, textContent: plane.words ?? plane.name, title: plane.note ?? "" })));
      select.disabled = select.options.length < 2;
      select.value = chosen[name];
    }
  }

  function message(kind, heading, text, ...more) {
    state.className = `state ${kind}`;
    state.replaceChildren(element("h2", { textContent: heading }), element("p", { textContent: text }), ...more);
    state.hidden = false;
  }

  function code() {
    const lines = element("pre", { textContent: listing?.code ?? "", tabIndex: 0 });
    lines.setAttribute("aria-label", "Code that computes a plane");
    return lines;
  }

  function empty() {
    answer = null;
    pair.replaceChildren();
    tables.replaceChildren();
    words.textContent = listing?.caption ?? "";
    const example = element("button", { type: "button", textContent: "Show an example", onclick: () => { [chosen.left, chosen.right] = [listing.examples.at(-1), ""]; offer(); question(); } });
    message("", listing?.planes.length ? "Choose a plane" : "No planes yet", listing?.planes.length ? "The planes of this folder are listed on the left." : listing?.empty ?? "", ...(listing?.planes.length ? [] : [code(), example]));
    card.show("no plane yet", "Waiting for a plane", "Its surface and figures of roughness appear here; two planes are drawn side by side on equal scales.", "undecided");
  }

  const remember = () => setState({ left: chosen.left, right: chosen.right, turn: view.turn, tilt: view.tilt });

  try {
    listing = await json("landscapes", undefined, signal);
    const readable = listing.planes.filter(({ note }) => !note.startsWith("cannot")).map(({ name }) => name);
    if (!chosen.left && !chosen.right) [chosen.left = "", chosen.right = ""] = (listing.planes.length ? readable : listing.examples).slice(0, 2);
    offer();
    await question();
  } catch (error) {
    if (error.name !== "AbortError") message("error", "This cannot be shown", error.message);
  }
  return () => stop.abort();
}
