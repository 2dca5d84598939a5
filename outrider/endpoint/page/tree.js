// The candidates of the text that is being made, and the path that the target took through them.

import { el, svg } from "./elements.js";

const ROOT = -1; // the parent of what hangs below the last committed token
const WIDTH = 320, STEP = 68, LINE = 17, MOST = 28, TRAIL = 3;

export class Tree {
  constructor(place) {
    this.place = place;
    this.reset();
  }

  reset() {
    this.root = null; // position of the last committed token
    this.rootNumber = null; // its number, where it was a candidate
    this.nodes = new Map(); // number -> {parent, token, chance}
    this.roots = []; // numbers of the nodes below the root
    this.trail = []; // the last committed tokens: [text, by]
    this.draw();
  }

  // Draw at most once a frame.
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  // base: position of the token that parent -1 stands for
  sent({ base, nodes }) {
    this.root ??= base;
    for (const [number, named, token, chance] of nodes) {
      const parent = named === this.rootNumber || (named < 0 && base === this.root) ? ROOT : named;
      if (parent !== ROOT && !this.nodes.has(parent)) continue;
      this.nodes.set(number, { parent, token, chance });
      if (parent === ROOT) this.roots.push(number);
    }
    this.later();
  }

  committed({ position, texts, by }) {
    texts.forEach((text, index) => {
      const next = this.roots.find((number) => this.nodes.get(number).token === text);
      this.trail = [...this.trail, [text, by[index]]].slice(-TRAIL);
      this.rootNumber = next ?? null;
      this.roots = next === undefined ? [] : this.below(next);
      this.roots.forEach((number) => { this.nodes.get(number).parent = ROOT; });
      this.keep();
    });
    this.root = position + texts.length - 1;
    this.later();
  }

  below(number) {
    return [...this.nodes].filter(([, node]) => node.parent === number).map(([one]) => one);
  }

  // Forget what does not hang below the root.
  keep() {
    const live = new Map(), waiting = [...this.roots];
    while (waiting.length) {
      const number = waiting.pop();
      live.set(number, this.nodes.get(number));
      waiting.push(...this.below(number));
    }
    this.nodes = new Map([...live].sort(([one], [other]) => one - other));
  }

  draw() {
    const shown = this.likeliest(), rows = new Map(), picture = [];
    let next = 0;
    const place = (number) => {
      const children = shown.filter(([one]) => this.nodes.get(one).parent === number);
      const lines = children.map(([one]) => place(one));
      rows.set(number, lines.length ? lines.reduce((a, b) => a + b) / lines.length : next++);
      return rows.get(number);
    };
    const tops = shown.filter(([one]) => this.roots.includes(one)).map(([one]) => place(one));
    const rootLine = tops.length ? tops.reduce((a, b) => a + b) / tops.length : 0;
    const x = (depth) => 6 + (this.trail.length + depth) * STEP;
    const y = (line) => 14 + line * LINE;
    this.trail.forEach(([text, by], index) => {
      const label = svg("text", { x: 6 + index * STEP, y: y(rootLine), class: `by-${by}` });
      label.textContent = shorten(text);
      picture.push(label);
    });
    for (const [number, depth, value] of shown) {
      const node = this.nodes.get(number);
      const from = node.parent === ROOT ? rootLine : rows.get(node.parent);
      const line = rows.get(number), left = x(depth) - 8;
      picture.push(svg("path", {
        d: `M${left - 14} ${y(from) - 4}L${left} ${y(line) - 4}`, class: "edge",
      }));
      const label = svg("text", { x: x(depth) - 4, y: y(line), opacity: 0.35 + 0.65 * value });
      label.textContent = shorten(node.token);
      picture.push(label);
    }
    const height = Math.max(y(next), 30);
    const deepest = shown.reduce((most, [, depth]) => Math.max(most, depth), 0);
    const wide = Math.max(WIDTH, x(deepest + 1));
    this.place.replaceChildren(el(svg("svg", { viewBox: `0 0 ${wide} ${height}` }), picture));
    this.place.setAttribute("aria-label", `${this.nodes.size} candidates, after `
      + (this.trail.map(([text]) => text).join("") || "the prompt"));
  }

  // The likeliest nodes with their depth and value, each after its parent.
  likeliest() {
    const values = new Map(), found = [];
    for (const [number, node] of this.nodes) {
      const [depth, value] = node.parent === ROOT ? [-1, 1] : values.get(node.parent);
      values.set(number, [depth + 1, value * node.chance]);
      found.push([number, depth + 1, value * node.chance]);
    }
    const best = found.sort((one, other) => other[2] - one[2] || one[1] - other[1]).slice(0, MOST);
    return best.sort((one, other) => one[1] - other[1] || one[0] - other[0]);
  }
}

function shorten(text) {
  const shown = text.replaceAll("\n", "\u21b5").replaceAll(" ", "\u00b7").replaceAll("\t", "\u21e5");
  return shown.length > 9 ? `${shown.slice(0, 8)}\u2026` : shown;
}
