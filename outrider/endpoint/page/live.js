// The panel that shows the text that is being made: figures, candidates, and the knob.

import { Curve } from "./curve.js";
import { $, el } from "./elements.js";
import { call } from "./server.js";
import { Tree } from "./tree.js";

const NAMES = { target: "the target alone", model: "the draft", copy: "copied text",
  host: "the draft beside the target", device: "a second device" };
const PARTS = { draft: "draft", wire: "wire and rest", queue: "queue", target: "target" };

export class Live {
  // failed(error): is called where the target cannot be steered
  constructor(failed) {
    this.tree = new Tree($("tree"));
    this.curve = new Curve($("curve"));
    this.steered = ""; // the target whose knob is shown
    $("cs").addEventListener("input", async () => {
      $("cs-value").textContent = $("cs").value;
      try { await call("page/steer", { cs: Number($("cs").value) }); } catch (error) { failed(error); }
    });
  }

  // The target in use has this state.
  state({ running, unsteered, priced, weight, model, address }) {
    $("knob").hidden = !running || unsteered !== "";
    $("cs-note").textContent = unsteered || (priced ? `prices: ${priced}` : "");
    const target = `${model} at ${address}`;
    if (!running || target === this.steered) return; // a user may be moving the knob
    this.steered = target;
    $("cs-value").textContent = $("cs").value = Math.round(weight * 100);
  }

  begin() {
    this.tree.reset();
  }

  // An event of the text, as the server sends it.
  event(name, data) {
    if (name === "nodes") this.tree.sent(data);
    if (name === "tokens") this.tree.committed(data);
    if (name === "figures") show(data);
  }

  end(figures) {
    show(figures);
    this.point(figures);
  }

  point(figures) {
    if (!figures.tokens) return;
    const priced = figures.usd !== null;
    const cost = priced ? (figures.usd / figures.tokens) * 1e6 : 1 / Math.max(figures.acceptance_length, 1e-9);
    this.curve.add({ cs: Number($("cs").value), speed: figures.speed, cost, priced });
  }
}

function show(figures) {
  const rows = {
    "tokens": figures.tokens, "tokens/s": figures.speed.toFixed(1),
    "first token": `${(figures.first * 1000).toFixed(0)} ms`,
    "acceptance length": figures.acceptance_length.toFixed(2),
    "cost": figures.usd === null ? "no price is known" : `$${figures.usd.toFixed(6)}`,
    "energy here": figures.joules === null ? "not known" : `${figures.joules.toFixed(2)} J`,
  };
  $("figures").replaceChildren(...Object.entries(rows).flatMap(([name, value]) =>
    [el("dt", [name]), el("dd", [String(value)])]));
  const by = { ...figures.accepted_by };
  by.target = figures.tokens - Object.values(by).reduce((sum, count) => sum + count, 0);
  $("legend").replaceChildren(...Object.entries(by).map(([name, count]) =>
    el("li", [`${NAMES[name]}: ${count}`], { class: `by-${name}` })));
  showWhere(figures);
}

// The draft works while the target does: of its time, what was not hidden is shown.
function showWhere({ seconds, where }) {
  const target = Math.min(where.target, seconds), queue = Math.min(where.queue, seconds - target);
  const wire = Math.max(seconds - target - queue, 0), draft = Math.min(where.draft, seconds);
  const parts = { target, queue, wire };
  const bar = Object.entries(parts).map(([name, value]) => {
    const part = el("span", [], { class: `part-${name}` });
    part.style.width = `${(100 * value) / Math.max(seconds, 1e-9)}%`;
    return part;
  });
  const mine = el("span", [], { class: "part-draft" });
  mine.style.width = `${(100 * draft) / Math.max(seconds, 1e-9)}%`;
  const words = Object.entries({ ...parts, draft }).map(([name, value]) =>
    `${PARTS[name]} ${((100 * value) / Math.max(seconds, 1e-9)).toFixed(0)} %`).join(", ");
  $("where").replaceChildren(el("div", bar, { class: "bar" }), el("div", [mine], { class: "bar" }),
    el("p", [words], { class: "note" }));
  $("where").setAttribute("aria-label", words);
}
