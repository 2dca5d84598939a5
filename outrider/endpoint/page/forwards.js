// The forward passes of a text: the candidates sent before each, and the tokens it accepted.

export const NAMES = { target: "target", model: "draft model", copy: "copied text",
  host: "draft beside the target", device: "second device" };
export const ROOT = -1; // the parent of candidates right behind the last token
const MOST = 400, SHOWN = 48, TRAIL = 24;

export class Forwards {
  constructor() {
    this.all = []; // the last MOST, oldest first
    this.count = 0; // of all that were made
    this.root = null; // position of the last committed token
    this.path = new Map(); // position -> id of a committed token
    this.places = new Map(); // number of a candidate -> the position at which it was committed
    this.nodes = new Map(); // number -> {number, parent, id, text, chance, by, at}
    this.trail = []; // the last committed tokens: {text, by, chance, at}
    this.last = { at: 0, forwards: 0, model_seconds: 0, bytes: [0, 0], calls: 0, drafting: 0 };
    this.sent = []; // messages with candidates since the last tokens: {at, count}
  }

  event(name, data) {
    if (name === "nodes") this.#send(data);
    if (name === "tokens") this.#commit(data);
    if (name === "figures") this.#figure(data);
  }

  // base: position of the token that parent -1 stands for
  #send({ at: sent, by, base, nodes, more }) {
    this.root ??= base;
    this.sent.push({ at: sent, count: nodes.length + more });
    for (const [number, named, text, chance, id] of nodes) {
      const at = named < 0 ? base : this.places.get(named); // where a committed parent is
      if (at < this.root) { // the target was quicker
        if (this.path.get(at + 1) === id) this.places.set(number, at + 1);
        continue;
      }
      const parent = at === undefined ? named : ROOT;
      if (parent === ROOT || this.nodes.has(parent)) this.nodes.set(number, { number, parent, id, text, chance, by, at: sent });
    }
  }

  // Each forward ends with a token that nobody had named: so a message is cut into its forwards.
  #commit(data) {
    if (!data.ids.length) return; // an end without tokens
    const groups = [[]];
    data.ids.forEach((id, index) => {
      groups.at(-1).push({ id, text: data.texts[index], by: data.by[index], at: data.at });
      if (data.by[index] === "target" && index < data.ids.length - 1) groups.push([]);
    });
    const seconds = Math.max(data.model_seconds - this.last.model_seconds, 0) / groups.length;
    this.root = data.position - 1;
    groups.forEach((tokens, index) => {
      const left = groups.length - 1 - index;
      this.#forward(tokens, left ? null : data.known, {
        at: data.at, seconds, end: data.at - left * seconds, together: groups.length,
        since: left ? data.at : this.last.at, sent: left ? [] : this.sent,
        up: left ? 0 : data.bytes[0] - this.last.bytes[0],
        down: left ? 0 : data.bytes[1] - this.last.bytes[1], calls: 0, drafting: 0,
      });
    });
    this.sent = [];
    Object.assign(this.last, { at: data.at, model_seconds: data.model_seconds, bytes: data.bytes });
  }

  #forward(tokens, known, times) {
    const trail = this.trail, before = new Map(this.nodes);
    let parent = ROOT;
    const made = tokens.map(({ id, text, by, at }) => {
      const node = [...before.values()].find((one) => one.parent === parent && one.id === id);
      parent = node?.number ?? null;
      this.path.set(++this.root, id);
      if (node) this.places.set(parent, this.root);
      return { text, by, at, number: parent, chance: node?.chance ?? null };
    });
    const taken = new Set(made.map(({ number }) => number));
    this.all = [...this.all, { number: ++this.count, trail, made, ...times,
      ...this.#candidates(known, taken) }].slice(-MOST);
    this.trail = [...trail, ...made].slice(-TRAIL);
    this.#keep(parent);
  }

  // How busy the draft was since the last tokens.
  #figure({ draft_calls: calls, where: { draft: drafting } }) {
    const last = this.all.at(-1);
    if (!last) return;
    last.calls += calls - this.last.calls;
    last.drafting += drafting - this.last.drafting;
    Object.assign(this.last, { calls, drafting });
  }

  // The root is this candidate now; forget what does not hang below it.
  #keep(number) {
    const live = new Map();
    for (const [one, node] of this.nodes) { // a parent comes before what hangs below it
      if (node.parent === number && number !== null) live.set(one, { ...node, parent: ROOT });
      else if (live.has(node.parent)) live.set(one, node);
    }
    this.nodes = live;
    for (const [one, at] of this.places) if (at < this.root - TRAIL) this.places.delete(one);
    this.path.delete(this.root - 2 * TRAIL);
  }

  // The likeliest candidates, each behind its parent. late: had not arrived when the forward began
  #candidates(known, taken = new Set()) {
    const values = new Map(), found = [];
    for (const [number, node] of this.nodes) {
      const [depth, value] = node.parent === ROOT ? [0, 1] : values.get(node.parent);
      values.set(number, [depth + 1, value * node.chance]);
      const late = known !== null && number >= known;
      found.push({ ...node, depth, value: value * node.chance, late, taken: taken.has(number) });
    }
    const best = found.sort((one, other) =>
      other.taken - one.taken || other.value - one.value || one.depth - other.depth).slice(0, SHOWN);
    best.sort((one, other) => one.depth - other.depth || other.taken - one.taken || other.value - one.value);
    return { nodes: best, more: found.length - best.length };
  }
}

export function percent(chance) {
  return `${(100 * chance).toFixed(chance < 0.01 ? 1 : 0)} %`;
}

// A token with its blanks made visible.
export function shorten(text, most = 9) {
  const shown = text.replaceAll("\n", "\u21b5").replaceAll(" ", "\u00b7").replaceAll("\t", "\u21e5");
  return shown.length > most ? `${shown.slice(0, most - 1)}\u2026` : shown || "\u2205";
}
