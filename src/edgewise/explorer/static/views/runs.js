// Runs: watched runs of the given folder, one or two side by side, drawn again while they grow.
import { API, json } from "../api.js";
import { element, glyph } from "../draw.js";
import { pad, RunColumn } from "../run_column.js";

export const title = "Runs";
const SHOWN = 4; // statistics that have a button of their own
const CODE = 'with edgewise.watch(model, "runs/a"):\n    train(model)\n\n# then, in the shell:  edgewise explore runs';

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop;
  const state = { run: address.run ?? null, with: address.with ?? null, show: address.show ?? null, curve: address.curve ?? null };
  let columns = [], streams = [], list = [];
  const names = element("ul", { className: "run-list" }), other = element("select", { id: "with" }), curves = element("select", { id: "curve" }), choices = element("div", { className: "segments", role: "group", ariaLabel: "Statistic" });
  const panel = element("aside", { className: "panel", ariaLabel: "Runs" }, element("p", { className: "label", textContent: "Runs" }), names, element("label", { className: "label", htmlFor: "with", textContent: "Beside it" }), other, element("label", { className: "label spaced", htmlFor: "curve", textContent: "Below the loss" }), curves);
  const body = element("div", { className: "run-body" });
  const live = element("p", { className: "sr", ariaLive: "polite" });
  root.append(panel, element("div", { className: "run-main" }, choices, body), live);

  // The curve below the loss: what was chosen, else how far the steps are from the rehearsed edge, where that is known.
  function curveOf({ curves: known }) {
    if (state.curve) return state.curve in known ? state.curve : null;
    return ["stream_change_of_edge", "learning_rate"].find((name) => name in known) ?? null;
  }

  // What all columns have in common: the steps, the colors, the loss.
  function range() {
    const data = columns.map((column) => column.data).filter((each) => each?.steps.length);
    const low = Math.min(...data.map((each) => each.steps[0][0])), high = Math.max(...data.map((each) => each.steps.at(-1)[1] + 1));
    const heats = data.map((each) => each.heat).filter(Boolean), losses = data.flatMap((each) => each.curves.loss?.values ?? []).filter((v) => v !== null);
    const ends = (values, otherwise) => (values.length ? { low: Math.min(...values), high: Math.max(...values) } : otherwise);
    const heat = { ...ends(heats.flatMap((each) => [each.low, each.high]), { low: 0, high: 1 }), log: heats.length > 0 && heats.every((each) => each.low > 0) && heats.some((each) => each.log) };
    if (heat.low === heat.high) heat.high = heat.low + (Math.abs(heat.low) || 1);
    const loss = ends(losses, { low: 0, high: 1 });
    loss.log = loss.low > 0 && loss.high / loss.low > 20;
    const shown = data.map((each) => [curveOf(each), each.curves[curveOf(each)]]).filter(([, each]) => each);
    const others = ends(shown.flatMap(([name, { values, healthy }]) => [...values, ...(name.endsWith("_of_edge") ? healthy : [])]).filter((v) => v !== null), { low: 0, high: 1 }); // the edge itself is always seen
    others.log = others.low > 0 && others.high / others.low > 20;
    return { other: pad(others), x: data.length ? { low, high: Math.max(high, low + 1) } : { low: 0, high: 100 }, heat, loss: pad(loss) };
  }

  async function show() {
    end();
    setState(state);
    mark();
    const wanted = [state.run, state.with].filter((name, k, all) => name !== null && all.indexOf(name) === k);
    columns = wanted.map((name) => new RunColumn(name, { onCursor: (step) => columns.forEach((column) => column.point(step)), range, curve: curveOf, signal }));
    body.className = `run-body ${columns.length > 1 ? "two" : ""}`;
    body.replaceChildren(...columns.map((column) => column.element));
    await Promise.all(columns.map((column) => reload(column)));
    if (signal.aborted) return;
    for (const column of columns) if (column.data?.live) follow(column);
  }

  async function reload(column) {
    try {
      await column.load(state.show, signal);
      if (signal.aborted || !columns.includes(column)) return;
      segments(column.data);
      offer(column.data);
      for (const each of columns) each.draw();
    } catch (error) {
      if (signal.aborted || !columns.includes(column)) return;
      if (column.data) column.note.textContent = `${error.message} The pictures are the last that could be drawn.`; // a broken live run keeps its last data
      else column.element.replaceChildren(element("div", { className: "refused" }, element("h1", { className: "run-title", textContent: column.name }), element("p", { textContent: error.message })));
    }
  }

  // One event whenever the run has grown; while an answer is on its way the next ones wait for it together.
  function follow(column) {
    const stream = new EventSource(`${API}/run/stream?name=${encodeURIComponent(column.name)}`);
    let busy = false, again = false, known = column.data.alarms.length;
    stream.onmessage = async ({ data }) => {
      if (JSON.parse(data).ended) stream.close();
      again = true;
      if (busy) return;
      busy = true;
      while (again && !signal.aborted) {
        again = false;
        await reload(column);
      }
      busy = false;
      if (column.data.alarms.length > known) live.textContent = `Alarm at step ${column.data.alarms.at(-1).step}: ${column.data.alarms.at(-1).title}`;
      known = column.data.alarms.length;
    };
    streams.push(stream);
  }

  function end() {
    for (const stream of streams) stream.close();
    streams = [];
  }

  // ---- controls
  function mark() {
    names.replaceChildren(...list.map((run) => {
      const words = run.refused ? "cannot be read" : [run.live ? "going on" : "ended", run.alarms ? `${run.alarms} alarm${run.alarms > 1 ? "s" : ""}` : run.unseen.length ? "not enough seen" : "no alarm"].join(", ");
      const kind = run.refused ? "undecided" : run.alarms ? "fails" : run.unseen.length ? "undecided" : "trains";
      const button = element("button", { type: "button", className: "run-choice", onclick: () => choose(run.name) }, element("span", { className: kind }, glyph(kind)), element("span", {}, element("b", { textContent: run.title }), element("small", { textContent: words })));
      button.setAttribute("aria-pressed", String(run.name === state.run));
      return element("li", {}, button);
    }));
    other.replaceChildren(element("option", { value: "", textContent: "nothing" }), ...list.filter((run) => run.name !== state.run && !run.refused).map((run) => element("option", { value: run.name, textContent: run.title })));
    other.value = state.with ?? "";
    other.disabled = list.length < 2;
  }

  function choose(name) {
    state.run = name;
    if (state.with === name) state.with = null;
    show();
  }

  function offer(data) {
    if (curves.dataset.names === Object.keys(data.curves).join()) return;
    curves.dataset.names = Object.keys(data.curves).join();
    curves.replaceChildren(...Object.values(data.curves).filter(({ name }) => name !== "loss").map(({ name, label }) => element("option", { value: name, textContent: label })));
    curves.value = curveOf(data) ?? "";
  }

  function segments({ statistics, heat }) {
    const pick = (name) => { state.show = name; show(); };
    const first = statistics.slice(0, SHOWN), rest = statistics.slice(SHOWN);
    const buttons = first.map(({ name, label }) => {
      const button = element("button", { type: "button", textContent: label, onclick: () => pick(name) });
      button.setAttribute("aria-pressed", String(name === heat?.name));
      return button;
    });
    const more = element("select", { ariaLabel: "Other statistics", onchange: () => more.value && pick(more.value) }, element("option", { value: "", textContent: "other …" }), ...rest.map(({ name, label }) => element("option", { value: name, textContent: label })));
    if (rest.some(({ name }) => name === heat?.name)) more.value = heat.name;
    const focused = choices.contains(document.activeElement) ? [...choices.children].indexOf(document.activeElement) : -1;
    choices.replaceChildren(...buttons, ...(rest.length ? [more] : []));
    choices.children[focused]?.focus();
  }

  // What a reader without runs of their own needs to know, below the list.
  function introduce() {
    panel.append(element("p", { className: "hint", textContent: "This run comes with edgewise: from step 80 on its learning rate grows until the network breaks. Choose an alarm below the picture to see what it says. To watch your own, and follow it live:" }),
      element("pre", { textContent: CODE, tabIndex: 0, ariaLabel: "Code that watches a run" }));
  }

  const answer = await json("runs", undefined, signal);
  list = answer.runs;
  if (answer.example) introduce();
  curves.addEventListener("change", () => { state.curve = curves.value || null; show(); });
  other.addEventListener("change", () => { state.with = other.value || null; show(); });
  if (!list.some((run) => run.name === state.run)) state.run = (list.find((run) => run.live) ?? list.find((run) => run.alarms) ?? list[0]).name;
  if (!list.some((run) => run.name === state.with)) state.with = null;
  show();
  return () => {
    stop.abort();
    end();
  };
}
