// A message on the page: its text, and the actions on it.

import { drawFile } from "./attachments.js";
import { button, copyButton, el, iconButton } from "./elements.js";
import { isCode } from "./markdown.js";
import { RichText } from "./rich_text.js";
import { colour } from "./runs.js";

export class MessageView {
  // acts: {edit(message, text), regenerate(message), change(message, step), goOn()}
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.panes = []; // {message, place, note, rich}
    this.head = el("div", [], { class: "head" });
    this.body = el("div", [], { class: "body" });
    this.bar = el("div", [], { class: "bar-of-message" });
    this.element = el("article", [this.head, this.body, this.bar], { class: `message ${message.role}` });
  }

  // shown: {colours, busy: whether a text is being generated, live: whether it is this one, last}
  draw(shown) {
    this.shown = shown;
    const { role, model } = this.message, name = role === "user" ? "You" : model ?? "Answer";
    this.head.replaceChildren(el("h3", [name], role === "user" ? { class: "hidden" } : {}), ...this.switches());
    if (!this.editing) this.drawBody();
    this.bar.replaceChildren(...(shown.live || this.editing ? [] : this.actions()));
  }

  drawBody() {
    const { message } = this, both = message.beside ? [message, message.beside] : [message];
    if (this.panes.length !== both.length) {
      this.panes = both.map((one, index) => pane(one, message.beside && ["With draft", "Without draft"][index]));
      this.body.replaceChildren(...this.panes.map(({ box }) => box));
      this.body.classList.toggle("pair", both.length > 1);
    }
    this.drawText();
  }

  // Draws at most once a frame.
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.drawBody(); });
  }

  drawText() {
    const { colours, live } = this.shown;
    for (const each of this.panes) {
      const { message, place, note } = each;
      if (message.role === "user") {
        place.classList.toggle("as-code", isCode(message.content));
        place.replaceChildren(...(message.files ?? []).map(drawFile), message.content);
      } else if (colours) {
        each.rich = null;
        place.replaceChildren(colour(message));
      } else this.drawRich(each);
      const words = message.note ?? (message.going && !live ? "interrupted" : "");
      note.textContent = words || (live ? "\u2026" : "");
    }
  }

  // A text that cannot be drawn, such as one that nests too deep, is shown plainly.
  drawRich(each) {
    const { message, place } = each;
    if (!each.rich) place.replaceChildren();
    try {
      (each.rich ??= new RichText(place)).draw(message.content);
    } catch {
      each.rich = null;
      place.replaceChildren(el("div", [message.content], { class: "plain" }));
    }
  }

  switches() {
    const { siblings } = this.message;
    if (!siblings) return [];
    const step = (by) => () => this.acts.change(this.message, by);
    const [back, on] = [iconButton("previous", "Earlier branch", step(-1)), iconButton("next", "Later branch", step(1))];
    const place = siblings.indexOf(null);
    back.disabled = this.shown.busy || place === 0;
    on.disabled = this.shown.busy || place === siblings.length - 1;
    return [el("span", [back, `${place + 1} / ${siblings.length}`, on], { class: "branches" })];
  }

  actions() {
    const { message, acts, shown } = this, copying = copyButton("Copy text", () => message.content);
    if (shown.busy) return [copying];
    if (message.role === "user") {
      const asking = shown.last ? [labelled("again", "Ask again", () => acts.goOn())] : [];
      return [copying, labelled("edit", "Edit", () => this.edit()), ...asking];
    }
    const going = shown.last && message.going ? [labelled("on", "Continue", () => acts.goOn())] : [];
    return [...going, copying, labelled("again", "Regenerate", () => acts.regenerate(message))];
  }

  // Edits in place. Escape leaves the message as it was.
  edit() {
    const { message } = this, area = el("textarea", [message.content], { "aria-label": "Your message", rows: "3" });
    this.editing = true;
    const end = (text) => {
      this.editing = false;
      this.panes = [];
      this.draw(this.shown);
      if (text?.trim() && text !== message.content) this.acts.edit(message, text);
      else this.bar.querySelector("[aria-label=Edit]")?.focus();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); end(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) end(area.value);
    });
    const send = button("Send again", () => end(area.value));
    send.className = "primary";
    this.body.replaceChildren(area, el("div", [send, button("Cancel", () => end())], { class: "row" }));
    this.bar.replaceChildren();
    area.focus();
  }
}

function labelled(icon, label, action) {
  const made = iconButton(icon, label, action);
  made.append(label);
  return made;
}

function pane(message, name) {
  const place = el("div", [], { class: "text" }), note = el("p", [], { class: "note" });
  const box = el("div", [...(name ? [el("h4", [name])] : []), place, note]);
  return { message, box, place, note, rich: null };
}
