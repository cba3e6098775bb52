// How far a long computation is: words, a bar, and a button that stops it or goes on.
import { element } from "./draw.js";

export class Progress {
  constructor(id = "") {
    this.words = element("span");
    this.bar = element("progress", { max: 1, ariaLabel: "Done so far" });
    this.button = element("button", { type: "button", onclick: () => this.act?.() });
    this.element = element("div", { className: "progress", id, hidden: true }, this.words, this.bar, this.button);
  }

  // done: the share that is done, undefined where nothing is going on; action: [word, act] of the button.
  show(words, { done, action } = {}) {
    this.words.textContent = words;
    this.bar.hidden = done === undefined;
    if (done !== undefined) this.bar.value = done;
    this.button.hidden = !action;
    [this.button.textContent, this.act] = action ?? ["", null];
    this.element.hidden = !words;
  }

  hide() {
    this.show("");
  }
}
