// The choice of a network, the same in every view: a preset, a dropped config or saved trace, its depth and its length.
import { json } from "./api.js";
import { $, element, fragment } from "./draw.js";

export const SHARED = ["preset", "file", "depth", "tokens"]; // keys of the address that go from view to view
// What the page opens with: torch's own encoder, 48 blocks deep, which will not train; its fix is one click away.
export const START = { preset: "torch-encoder", depth: "48", tokens: "64" };
const LARGEST = { config: 200_000, trace: 280_000 }; // bytes
let dropped = null, origin = "", catalogue = null;

export const known = () => (catalogue ??= json("catalogue").catch((error) => { catalogue = null; throw error; }));

// What the address names, as the server takes it; null where it names nothing. A file is kept until the page is left.
export function sourceOf({ preset, file, depth, tokens }) {
  const whole = (text) => (/^\d{1,6}$/.test(text ?? "") ? +text : null);
  const sizes = { depth: whole(depth), tokens: whole(tokens) };
  if (preset) return { preset, ...sizes };
  if (!file) return null;
  if (dropped?.name !== file) throw new Error(`${file.slice(0, 80)} is not kept in the address. Drop the file again, or choose a preset.`);
  return { ...dropped, ...sizes };
}

export function stateOf(source) {
  if (!source) return {};
  return { preset: source.preset, file: source.preset ? null : source.name, depth: source.depth, tokens: source.tokens };
}

const PANEL = `<div class="group">
  <label class="label" for="preset">Model</label>
  <select id="preset"><option value="">choose a preset</option></select>
  <label class="drop" id="drop"><input type="file" id="file" accept=".json,.npz,application/json" aria-label="Choose a config.json or a saved trace"><span>Drop a config.json or a saved trace here, or <u>choose a file</u></span></label>
  <p class="hint" id="note"></p>
</div>`;
const SIZES = `<div class="group two">
  <div><label class="label" for="depth">Depth, blocks</label><input id="depth" type="number" min="1" step="1" disabled></div>
  <div><label class="label" for="tokens">Length, tokens</label><input id="tokens" type="number" min="2" step="1" disabled></div>
</div>`;

// choose(source) is called when another network is wanted, with null for none; refuse(words, name) for a file that will not do.
// between: elements that stand between the model and its sizes; sizes: false leaves depth and length out.
export class ModelPanel {
  constructor({ choose, refuse, signal, between = [], after = [], sizes = true }) {
    Object.assign(this, { choose, refuse, source: null });
    const fold = element("details", { className: "fold", open: !matchMedia("(max-width: 760px)").matches }, element("summary", { textContent: "Model and knobs" }), fragment(PANEL), ...between, ...(sizes ? [fragment(SIZES)] : []), ...after);
    this.element = element("aside", { className: "panel" }, fold);
    this.element.setAttribute("aria-label", "Model and knobs");
    this.find = (id) => this.element.querySelector(`#${id}`);
    this.#listen(signal);
  }

  #listen(signal) {
    const preset = this.find("preset"), file = this.find("file"), drop = this.find("drop");
    preset.addEventListener("change", () => this.choose(preset.value ? { preset: preset.value } : null));
    file.addEventListener("change", () => this.take(file.files[0]).then(() => (file.value = "")));
    for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); }, { signal });
    for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"), { signal });
    document.addEventListener("drop", (event) => { event.preventDefault(); this.take(event.dataTransfer.files[0]); }, { signal });
    for (const name of ["depth", "tokens"]) this.find(name)?.addEventListener("change", ({ target }) => {
      if (Number.isInteger(target.valueAsNumber)) this.choose({ ...this.source, [name]: target.valueAsNumber });
    });
  }

  async fill() {
    const { presets } = await known();
    this.find("preset").append(...presets.map((name) => element("option", { value: name, textContent: name })));
  }

  // What the server says about the network that is shown.
  show(source, network) {
    this.source = source;
    this.find("note").textContent = [source.config && source.config === dropped?.config ? origin : "", network.note].filter(Boolean).join(" ");
    if (source.preset) this.find("preset").value = source.preset;
    else this.#option(source.name);
    for (const name of ["depth", "tokens"]) if (this.find(name)) Object.assign(this.find(name), { value: network[name], disabled: false });
  }

  disable() {
    for (const name of ["depth", "tokens"]) if (this.find(name)) this.find(name).disabled = true;
  }

  #option(name) {
    const preset = this.find("preset");
    for (const old of preset.querySelectorAll("[data-file]")) old.remove();
    const option = element("option", { value: "", textContent: name });
    option.dataset.file = name;
    preset.prepend(option);
    preset.selectedIndex = 0;
  }

  async take(file) {
    if (!file) return;
    const kind = /\.npz$/i.test(file.name) ? "trace" : "config";
    if (file.size > LARGEST[kind]) return this.refuse(`${file.name} has ${file.size} bytes; this page reads a ${kind} of at most ${LARGEST[kind] / 1000}\u2009000.`, file.name);
    try {
      const { note = "", ...source } = kind === "trace" ? await json("trace", { data: await base64(file), name: file.name }) : { config: await file.text(), name: file.name };
      [dropped, origin] = [source, note];
    } catch (error) {
      return this.refuse(error.message, file.name);
    }
    this.#option(file.name);
    await this.choose({ ...dropped });
  }
}

// The bytes of a file as text that fits into a question.
const base64 = (file) => new Promise((done, fail) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => fail(new Error(`${file.name} cannot be read.`));
  reader.readAsDataURL(file);
});

export const pickFile = () => $("file").click();
