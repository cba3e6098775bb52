// Papers: every recorded statement, of others and of ours, with what came out; filtered by source, outcome and words.
import { API, json, save } from "../api.js";
import { why } from "../chart.js";
import { element, glyph } from "../draw.js";

export const title = "Papers";
const OUTCOMES = ["held", "depends on the reading", "open", "not held"];

export async function open(root, address, setState) {
  const stop = new AbortController(), { signal } = stop;
  const state = { source: address.source ?? "", outcome: address.outcome ?? "", words: address.words ?? "", by: address.by ?? "" };
  const data = await json("papers", undefined, signal);
  if (!data.sources.length) {
    root.append(element("div", { className: "stopped" }, element("h1", { textContent: "No records to show" }), element("p", { textContent: data.empty || "There are no recorded claims here." })));
    return () => stop.abort();
  }
  const panel = element("aside", { className: "panel", ariaLabel: "Filter" });
  const list = element("div", { className: "records" }), sum = element("h1", { className: "run-title" }), note = element("p", { className: "meta" });
  const live = element("p", { className: "sr", ariaLive: "polite" });
  const file = element("button", { type: "button", textContent: "Save table", onclick: () => save(new Blob([csv()], { type: "text/csv" }), "papers.csv") });
  root.append(panel, element("div", { className: "records-main" }, element("div", { className: "records-head" }, element("div", {}, sum, note), file), list), live);
  controls();
  show();
  return () => stop.abort();

  function controls() {
    const choice = (name, words, options) => {
      const select = element("select", { id: `papers-${name}` }, ...options.map(([value, text]) => element("option", { value, textContent: text })));
      select.value = state[name];
      select.addEventListener("change", () => change(name, select.value));
      return element("div", { className: "group" }, element("label", { className: "label", htmlFor: select.id, textContent: words }), select);
    };
    const search = element("input", { id: "papers-words", type: "search", value: state.words, oninput: () => change("words", search.value.slice(0, 80)) });
    const count = (source) => source.recipes.reduce((all, recipe) => all + recipe.statements.length, 0);
    panel.append(
      choice("source", "Source", [["", "all sources"], ...data.sources.map((source) => [source.name, `${source.name} (${count(source)})`])]),
      choice("outcome", "Outcome", [["", "every outcome"], ...OUTCOMES.map((word) => [word, `${word} (${data.counts[word]})`])]),
      element("div", { className: "group" }, element("label", { className: "label", htmlFor: search.id, textContent: "Words" }), search),
      ...(data.rows.length ? [choice("by", "Order", [["", "by source"], ["row", `by row of the sources (${data.rows.length})`]])] : []),
    );
  }

  function change(name, value) {
    state[name] = value;
    setState(state);
    show();
  }

  function fits(statement, recipe) {
    const text = `${recipe.title} ${recipe.recipe} ${statement.published} ${statement.ours} ${statement.rows.join(" ")}`.toLowerCase();
    return (!state.outcome || statement.outcome === state.outcome) && state.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function chosen() {
    return data.sources.filter((source) => !state.source || source.name === state.source)
      .map((source) => ({ ...source, recipes: source.recipes.map((recipe) => ({ ...recipe, statements: recipe.statements.filter((each) => fits(each, recipe)) })).filter((recipe) => recipe.statements.length) }))
      .filter((source) => source.recipes.length);
  }

  function show() {
    if (state.by === "row" && data.rows.length) return showRows();
    const sources = chosen(), all = sources.flatMap((source) => source.recipes.flatMap((recipe) => recipe.statements));
    const words = OUTCOMES.map((word) => [all.filter((each) => each.outcome === word).length, word]).filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(", ");
    sum.textContent = `${all.length} statement${all.length === 1 ? "" : "s"}${words ? `: ${words}` : ""}`;
    note.textContent = "What was published beside what came out here, at which scale, with the command that judges and draws it again from the record.";
    live.textContent = sum.textContent;
    list.replaceChildren(...(sources.length ? sources.map(section) : [element("p", { className: "refused", textContent: "No statement has these words and this outcome. Choose another outcome, or fewer words." })]));
  }

  function section({ title: heading, published, learned, recipes }) {
    const kind = element("p", { className: "meta", textContent: published ? "published by others, checked here" : "a question of ours" });
    return element("section", { className: "source" }, element("h2", { textContent: heading }), kind, ...(learned ? [element("p", { textContent: learned })] : []), ...recipes.map(record));
  }

  function record({ title: heading, recipe, command, figure, at, cases, measured, statements }) {
    const id = `figure-${recipe.replace(/\W/g, "-")}`, place = element("div", { id, className: "record-figure", hidden: true });
    const toggle = element("button", { type: "button", textContent: "Figure", disabled: !figure, onclick: () => unfold() });
    toggle.setAttribute("aria-expanded", "false");
    toggle.setAttribute("aria-controls", id);
    const unfold = () => {
      if (!place.childElementCount) place.append(drawn(recipe, heading));
      place.hidden = !place.hidden;
      toggle.setAttribute("aria-expanded", String(!place.hidden));
    };
    const facts = element("p", { className: "facts" }, `${at} scale, ${cases} cases, measured by ${measured} · `, element("code", { textContent: command }));
    return element("article", { className: "record" }, element("h3", { textContent: heading }), ...statements.map(row), element("div", { className: "record-foot" }, facts, toggle), place);
  }

  function drawn(recipe, heading) {
    const image = element("img", { src: `${API}/papers/figure?recipe=${encodeURIComponent(recipe)}`, alt: `Figure: ${heading}`, loading: "lazy" });
    return element("figure", {}, image, element("figcaption", {}, element("p", {}, `${heading}, drawn from the record by the command above. `, why("sources", "Sources"))));
  }

  function row({ published, ours, scale, outcome, kind, own, reading, rows }) {
    const end = element("p", { className: `then ${kind}` }, glyph(kind), own ? `${outcome} (ours)` : outcome);
    const part = (words, text) => element("div", {}, element("p", { className: "label", textContent: words }), element("p", { textContent: text }));
    const small = element("p", { className: "facts", textContent: [scale, rows.length ? `rows ${rows.join(", ")}` : ""].filter(Boolean).join(" · ") });
    const read = [["Said", reading.spoken], ["Read as", reading.reading], ["Other readings", reading.others], ["What would settle it", reading.settle]].filter(([, text]) => text);
    return element("div", { className: "statement" }, end, part(own ? "Our statement" : "Published", published), part("Here", ours), ...read.map(([words, text]) => part(words, text)), small);
  }

  // ---- by row of the sources
  function showRows() {
    const wanted = data.rows.filter((each) => state.words.toLowerCase().split(/\s+/).every((word) => JSON.stringify(each).toLowerCase().includes(word)) && (!state.outcome || each.answers.some((answer) => answer.outcome === state.outcome)));
    sum.textContent = `${wanted.length} rows of the sources`;
    const count = (test) => wanted.filter(test).length;
    note.textContent = `${count((each) => each.answers.length)} are answered by recorded statements, ${count((each) => each.status === "part of the library")} by a part of the library.`;
    live.textContent = sum.textContent;
    const answered = ({ recipe, outcome, kind, count: many }) => element("li", {}, element("span", { className: `then ${kind}` }, glyph(kind), many > 1 ? `${outcome}, ${many} statements` : outcome), " ", element("a", { className: "why", href: `#/papers?words=${encodeURIComponent(recipe)}`, textContent: recipe }));
    const line = (each) => element("tr", {}, element("th", { scope: "row", textContent: each.row }), element("td", {}, element("p", { textContent: each.says }), element("p", { className: "facts", textContent: each.where })),
      element("td", {}, each.status, element("ul", { className: "plain-list" }, ...each.answers.map(answered))));
    const head = element("tr", {}, ...["row", "what the source says", "answered by"].map((words) => element("th", { scope: "col", textContent: words })));
    list.replaceChildren(element("div", { className: "scroll tall", tabIndex: 0, role: "region", ariaLabel: "Rows of the sources" }, element("table", { className: "rows-table" }, element("thead", {}, head), element("tbody", {}, ...wanted.flatMap((each, k) => (each.source === wanted[k - 1]?.source ? [line(each)] : [element("tr", {}, element("th", { scope: "colgroup", colSpan: 3, className: "source-row", textContent: each.source })), line(each)]))))));
  }

  function csv() {
    const cell = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const lines = chosen().flatMap((source) => source.recipes.flatMap((recipe) => recipe.statements.map((each) => [source.name, recipe.recipe, each.published, each.ours, each.scale, each.outcome, each.own ? "ours" : "source", each.reading.reading ?? "", each.rows.join(" "), recipe.command].map(cell).join(","))));
    return ["source,recipe,published,ours,scale,outcome,whose,reading,rows,command", ...lines].join("\n") + "\n";
  }
}
