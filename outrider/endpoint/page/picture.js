// The picture of a text: its forward passes to step through, the tree of each, and the timeline.

import { $, el } from "./elements.js";
import { NAMES, shorten } from "./forwards.js";
import { drawTimeline } from "./timeline.js";
import { drawTree, words } from "./tree.js";

const PAUSE_MS = 80;

export class Picture {
  constructor() {
    this.chosen = null; // the forward pass that is held; null follows the latest with candidates
    this.items = [];
    $("step").addEventListener("input", () => this.#hold(this.forwards.all[Number($("step").value)]));
    $("step-back").addEventListener("click", () => this.#step(-1));
    $("step-on").addEventListener("click", () => this.#step(1));
    $("newest").addEventListener("click", () => { this.chosen = null; this.draw(); });
    $("enlarge").addEventListener("click", () => this.enlarge());
    $("tree").addEventListener("click", () => this.enlarge());
    $("tree").addEventListener("keydown", (event) => this.#key(event));
    $("tree").addEventListener("focusin", () => { if (!this.chosen) this.#hold(this.#latest); });
    $("trail").addEventListener("focusin", () => { this.chosen ??= this.#latest ?? null; });
    $("trail").addEventListener("keydown", (event) => along(event));
    for (const kind of ["pointerover", "focusin"]) {
      for (const id of ["tree", "trail"]) $(id).addEventListener(kind, (event) => this.#tell(event.target));
    }
    $("stage").addEventListener("close", () => { $("picture-place").append($("picture")); this.draw(); });
    $("stage").addEventListener("keydown", (event) => event.stopPropagation()); // Escape stops no text
    $("close-stage").addEventListener("click", () => $("stage").close());
    new ResizeObserver(() => this.later()).observe($("timeline"));
  }

  follow(forwards) {
    this.forwards = forwards;
    this.chosen = null;
    this.live = true; // the tree's box only grows meanwhile, so that nothing below it jumps
    $("tree").style.minHeight = "";
    this.draw();
  }

  // The text is finished: the tree's box fits what it shows.
  end() {
    this.live = false;
    $("tree").style.minHeight = "";
    this.draw();
  }

  // Draw soon, and not at all while nobody sees it: a text must not wait for its picture.
  later() {
    if (this.waiting || !($("stage").open || $("live").checkVisibility())) return;
    this.waiting = true;
    setTimeout(() => requestAnimationFrame(() => { this.waiting = false; this.draw(); }), PAUSE_MS);
  }

  enlarge() {
    if ($("stage").open) return;
    $("stage-picture").append($("picture"));
    $("stage").showModal();
    this.draw();
  }

  get #latest() {
    const { all } = this.forwards;
    return all.findLast(({ nodes }) => nodes.length) ?? all.at(-1);
  }

  draw() {
    const { all, count } = this.forwards;
    $("picture-place").hidden = !all.length;
    if (!all.length) return;
    if (!all.includes(this.chosen)) this.chosen = null; // forgotten
    const forward = this.chosen ?? this.#latest, index = all.indexOf(forward);
    Object.assign($("step"), { max: all.length - 1, value: index });
    $("step").setAttribute("aria-valuetext", `forward pass ${forward.number} of ${count}`);
    $("step-back").disabled = index === 0;
    $("step-on").disabled = index === all.length - 1;
    $("newest").setAttribute("aria-pressed", String(!this.chosen));
    this.#drawTree(forward);
    this.#drawTrail(forward);
    $("picture-words").textContent = said(forward, count);
    drawTimeline($("timeline"), all, forward, (one) => this.#hold(one));
  }

  #drawTrail({ trail, made }) {
    const line = [...trail, ...made.map((token) => ({ ...token, taken: true }))];
    const held = [...$("trail").children].indexOf(document.activeElement);
    $("trail").replaceChildren(...line.map((token, index) => el("span", [shorten(token.text, 40)], {
      class: `by-${token.by}${token.taken ? " taken" : ""}`, role: "listitem",
      tabindex: index === line.length - 1 ? 0 : -1, title: words({ ...token, taken: true }) })));
    if (held >= 0) $("trail").children[Math.min(held, line.length - 1)]?.focus();
  }

  #drawTree(forward) {
    const held = document.activeElement?.closest("#tree") ? this.focused : null;
    this.items = drawTree($("tree"), forward);
    if (this.live) $("tree").style.minHeight = `${$("tree").offsetHeight}px`;
    const item = this.items.find(({ node }) => node.number === held) ?? this.items[0];
    item?.mark.setAttribute("tabindex", 0);
    if (held !== null && item) item.mark.focus();
    $("tree").setAttribute("aria-label", `The tree of candidates: ${forward.nodes.length + forward.more}`);
  }

  #hold(forward) {
    this.chosen = forward ?? null;
    this.draw();
  }

  #step(by) {
    const forward = this.forwards.all[Number($("step").value) + by];
    if (forward) this.#hold(forward);
  }

  // Arrows move through the tree; Page Up and Page Down through the forward passes.
  #key(event) {
    const at = this.items.findIndex(({ mark }) => mark === document.activeElement);
    const { node, depth } = this.items[at] ?? {}, last = this.items.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last,
      ArrowRight: this.items[at + 1]?.depth > depth ? at + 1 : at,
      ArrowLeft: this.items.findIndex((item) => item.node.number === node?.parent) }[event.key];
    if (event.key === "PageUp") this.#step(-1);
    else if (event.key === "PageDown") this.#step(1);
    else if (event.key === "Enter") this.enlarge();
    else if (to === undefined) return;
    event.preventDefault();
    if (to === undefined || to < 0 || to > last) return;
    this.items.forEach(({ mark }, index) => mark.setAttribute("tabindex", index === to ? 0 : -1));
    this.items[to].mark.focus();
  }

  #tell(target) {
    const item = this.items.find(({ mark }) => mark.contains(target));
    if (item) this.focused = item.node.number;
    const told = item ? words(item.node) : target.title;
    if (told) $("who").textContent = told;
  }
}

// Left and right in a row of tokens.
function along(event) {
  const way = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  if (!way) return;
  event.preventDefault();
  document.activeElement[way]?.focus();
}

// A forward pass in words: the text of the picture.
function said({ number, nodes, more, made, at, seconds, together }, count) {
  const drawn = more ? ` (the ${nodes.length} most likely are drawn)` : "";
  const by = Object.entries(Object.groupBy(made, (token) => token.by));
  const who = by.map(([name, tokens]) => `${tokens.length} by ${NAMES[name]}`).join(", ");
  const apart = together > 1 ? `, one of ${together} reported together` : "";
  return `Forward pass ${number} of ${count}, at ${at.toFixed(2)} s${apart}: ${nodes.length + more} candidates${drawn}; `
    + `${made.length} token${made.length > 1 ? "s" : ""} (${who}); ${(1000 * seconds).toFixed(1)} ms on the target.`;
}
