// A tour of four steps for a first visit: what to look at in each of four views. It can be closed, and stays closed.
import { element } from "./draw.js";

const CLOSED = "edgewise: tour closed";
const STEPS = [
  ["map", "A 48-block encoder on the map", "Each point is a network that differs from yours in two knobs; color is the share of such networks that trained. Drag the dot, or choose the fix beside the map: the dot moves to where it trains."],
  ["depth", "How deep can it go?", "The same block, repeated. The line falls at the depth from which it no longer trains; each fix is a line of its own."],
  ["runs", "A training, watched", "Every column is a step, every row a block. The learning rate of this run grows until the network breaks: the alarms say what moved first, and where."],
  ["papers", "Where it comes from", "Every statement of the papers behind it, with what was measured here, and whether it held."],
];

function closed() {
  try { return localStorage.getItem(CLOSED) !== null; } catch { return true; } // storage is switched off: do not insist
}

// Only until it was closed once.
export function offerTour() {
  if (!closed()) startTour();
}

export function startTour() {
  let step = 0;
  const words = element("p"), heading = element("h2"), count = element("span", { className: "meta" });
  const back = element("button", { type: "button", textContent: "Back", onclick: () => go(step - 1) });
  const next = element("button", { type: "button", className: "primary", onclick: () => (step === STEPS.length - 1 ? end() : go(step + 1)) });
  const leave = element("button", { type: "button", className: "plain", textContent: "Close", onclick: end });
  const box = element("section", { className: "tour", ariaLabel: "Tour" }, count, heading, words, element("div", { className: "actions" }, back, next, leave));
  document.querySelector(".tour")?.remove();
  document.body.append(box);
  addEventListener("keydown", escape);
  fill();

  function go(to) {
    step = to;
    if (location.hash.slice(2).split("?")[0] !== STEPS[step][0]) location.hash = `#/${STEPS[step][0]}`;
    fill();
  }

  function fill() {
    const [, title, text] = STEPS[step];
    [count.textContent, heading.textContent, words.textContent] = [`${step + 1} of ${STEPS.length}`, title, text];
    back.disabled = step === 0;
    next.textContent = step === STEPS.length - 1 ? "Done" : "Next";
  }

  function escape(event) {
    if (event.key === "Escape" && box.contains(document.activeElement)) end();
  }

  function end() {
    removeEventListener("keydown", escape);
    box.remove();
    try { localStorage.setItem(CLOSED, "1"); } catch { /* storage is switched off, and without it the tour is not offered */ }
  }
}
