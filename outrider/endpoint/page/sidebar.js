// The list of conversations: search, rename, delete and its undo.

import { excerpt, title } from "./conversations.js";
import { $, button, el, keepFocus } from "./elements.js";

export class Sidebar {
  // changed(): another conversation is open, or none of this name
  constructor(conversations, changed) {
    this.conversations = conversations;
    this.changed = changed;
    $("search").addEventListener("input", () => this.draw());
    $("new").addEventListener("click", () => { conversations.begin(); changed(); $("message").focus(); });
    $("rename").addEventListener("click", () => this.rename());
    $("delete").addEventListener("click", () => this.remove());
    $("undo").addEventListener("click", () => { this.restore(this.removed); $("message").focus(); });
  }

  draw() {
    const { conversations } = this, words = $("search").value;
    keepFocus(() => {
      $("list").replaceChildren(...conversations.listed(words).map((one) => this.row(one, words)));
      const bin = conversations.deleted;
      $("bin").hidden = !bin.length;
      $("bin-list").replaceChildren(...bin.map((one) => el("li", [
        button(title(one), () => this.restore(one), `Restore ${title(one)}`),
      ])));
    });
    $("found").textContent = words.trim() ? `${$("list").children.length} found` : "";
    $("title").textContent = title(conversations.current);
    document.title = `${title(conversations.current)} \u00b7 Outrider`;
  }

  row(one, words) {
    const found = excerpt(one, words.trim().toLowerCase());
    const shown = [el("span", [title(one)]), ...(found ? [el("small", [found])] : [])];
    const opening = el("button", shown, { type: "button" });
    opening.addEventListener("click", () => {
      this.conversations.open(one.id);
      this.changed();
      $("message").focus();
    });
    if (one === this.conversations.current) opening.setAttribute("aria-current", "true");
    return el("li", [opening]);
  }

  rename() {
    const { current } = this.conversations, head = $("title");
    const box = el("input", [], { "aria-label": "Name of this conversation", maxlength: "120" });
    box.value = title(current);
    const end = (kept) => {
      if (!box.isConnected) return;
      if (kept) current.title = box.value.trim();
      this.conversations.keep(current);
      box.replaceWith(head);
      this.draw();
      $("rename").focus();
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
    });
    box.addEventListener("blur", () => end(true));
    head.replaceWith(box);
    box.select();
  }

  remove() {
    this.removed = this.conversations.current;
    if (!this.removed.messages.length) return;
    this.conversations.remove(this.removed);
    $("removed").textContent = `Deleted \u201c${title(this.removed)}\u201d`;
    $("toast").hidden = false;
    this.changed();
    $("undo").focus();
  }

  restore(conversation) {
    this.conversations.restore(conversation);
    $("toast").hidden = true;
    this.changed();
  }
}
