// The frame: which view is shown, and the bar to move between them.
//
// An address is `/#/NAME?key=value&...`, so that everything shown can be kept as a bookmark. A view is a module
// `views/NAME.js` with two exports:
//   title                        words for the window
//   open(root, state, setState)  builds its elements under `root` and returns `close`, which stops timers and streams.
// `state` holds the keys of the address as strings. `setState({key: value, ...})` replaces all of them; null and "" are
// left out. `open` may be async. Where the address changes by other hands (a link, the back button) the view is closed
// and opened again. A new view needs one line in VIEWS, and on the server one file with a `router`, named in server.py.
// Pieces to build with: `api.js` (questions), `model.js` (the choice of a network, kept from view to view by SHARED),
// `draw.js` (nodes and scales), `chart.js` (axes, curves, bands, heat maps, captions). Static files are plain ES modules; the policy of
// the page forbids inline scripts and style attributes in markup (setting `element.style.x` from a module is allowed).
import { SHARED, START } from "./model.js";
import { $, element } from "./draw.js";
import { offerTour, startTour } from "./tour.js";

const VIEWS = [
  ["map", "Map", () => import("./views/map.js")],
  ["depth", "Depth", () => import("./views/depth.js")],
  ["flow", "Flow", () => import("./views/flow.js")],
  ["perceptron", "Perceptron", () => import("./views/perceptron.js")],
  ["simplex", "Simplex", () => import("./views/simplex.js")],
  ["runs", "Runs", () => import("./views/runs.js")],
  ["landscape", "Landscape", () => import("./views/landscape.js")],
  ["papers", "Papers", () => import("./views/papers.js")],
];

const OF_A_NETWORK = ["map", "depth", "flow"]; // views that open with the network shown last, or with START
let close = null, visit = 0, shared = START;

// An address of the time when the map was the only view, `/?preset=...`, still leads to it; the token is not kept in it.
function modernize() {
  if (location.hash.startsWith("#/")) return;
  const query = new URLSearchParams(location.search);
  query.delete("token");
  history.replaceState(null, "", addressOf("map", Object.fromEntries(query)));
}

function addressOf(name, state) {
  const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return `/#/${name}${query.size ? `?${query}` : ""}`;
}

function current() {
  const [name, query = ""] = location.hash.slice(2).split(/\?(.*)/s);
  const state = Object.fromEntries(new URLSearchParams(query));
  const plain = name === "flow" && Object.keys(state).length; // sliders of the plain block, which has no name
  const named = state.preset || state.file || plain || !OF_A_NETWORK.includes(name);
  return { view: VIEWS.find(([each]) => each === name), name, state: named ? state : { ...shared, ...state } };
}

const links = new Map(VIEWS.map(([name, words]) => [name, element("a", { textContent: words })]));
$("views").append(...links.values());

function keep(state) {
  const network = Object.entries(state).filter(([key]) => SHARED.includes(key));
  if (network.length) shared = Object.fromEntries(network);
  for (const [name, link] of links) {
    link.href = addressOf(name, shared);
    if (name === current().name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function show() {
  const mine = ++visit, { view, name, state } = current(), root = $("main");
  close?.();
  close = null;
  root.replaceChildren();
  root.className = `view ${view ? name : ""}`;
  keep(state);
  try {
    if (!view) throw new Error(`There is no view with the name "${name.slice(0, 40)}". Choose one above.`);
    const { title, open } = await view[2]();
    if (mine !== visit) return;
    document.title = `${title} · edgewise`;
    const setState = (next) => {
      if (mine !== visit) return;
      history.replaceState(null, "", addressOf(name, next));
      keep(next);
    };
    const stop = await open(root, state, setState);
    if (mine === visit) close = stop;
    else stop?.();
  } catch (error) {
    if (mine === visit) root.replaceChildren(element("div", { className: "stopped" }, element("h1", { textContent: "This cannot be shown" }), element("p", { textContent: error.message })));
  }
}

addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  show();
  $("main").focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("tour").addEventListener("click", startTour);
modernize();
show();
offerTour();
