// The panel that shows the text that is being made: figures, its picture, replays, and the knob.

import { Curve, LEAST_TEXTS, short } from "./curve.js";
import { $, el } from "./elements.js";
import { Forwards, NAMES } from "./forwards.js";
import { Picture } from "./picture.js";
import { MOST_BYTES, Track, read, written } from "./recording.js";
import { Replay } from "./replay.js";
import { call } from "./server.js";

const PARTS = { draft: "draft", wire: "wire and rest", queue: "queue", target: "target" };

export class Live {
  // failed(error): is called where the target cannot be steered, and for a file that is no recording
  constructor(failed) {
    this.picture = new Picture();
    this.replay = new Replay(this.picture);
    this.curves = { usd: new Curve($("curve"), "$ a million tokens"), joules: new Curve($("energy-curve"), "J a token, of this machine") };
    this.tracks = []; // of the last message: Outrider's, and target-only's where it was asked for
    this.target = {}; // the state of the target in use
    this.steered = ""; // the target whose knob is shown
    this.picture.follow(new Forwards());
    $("cs").addEventListener("input", async () => {
      $("cs-value").textContent = $("cs").value;
      try { await call("page/steer", { cs: Number($("cs").value) }); } catch (error) { failed(error); }
    });
    $("replay-own").addEventListener("click", () => this.replay.open(read(this.#written())));
    $("save-recording").addEventListener("click", () => this.#save());
    $("open-recording").addEventListener("click", () => $("recording").click());
    $("recording").addEventListener("change", async ({ target }) => {
      const [file] = target.files;
      target.value = "";
      try { this.replay.open(read(await sized(file).text())); } catch (error) { failed(error); }
    });
  }

  // The target in use has this state.
  state(state) {
    const { running, unsteered, priced, weight, model, address } = this.target = state;
    $("knob").hidden = !running || unsteered !== "";
    $("cs-note").textContent = unsteered || (priced ? `prices: ${priced}` : "");
    const target = `${model} at ${address}`;
    if (!running || target === this.steered) return; // a user may be moving the knob
    this.steered = target;
    $("cs-value").textContent = $("cs").value = Math.round(weight * 100);
  }

  // A text by this name begins: Outrider's, or target-only's for the same message.
  begin(name, prompt) {
    this.alone = name === "target-only";
    this.tracks = this.alone ? [...this.tracks.slice(0, 1), new Track(name)] : [new Track(name)];
    this.prompt = prompt;
    $("race-note").hidden = !this.alone;
    $("replay-own").disabled = $("save-recording").disabled = true;
    if (!this.alone) this.picture.follow(new Forwards());
  }

  // An event of the text, as the server sends it.
  event(name, data) {
    this.tracks.at(-1).add(name, data);
    if (this.alone) return;
    this.picture.forwards.event(name, data);
    if (name === "nodes" || name === "tokens") this.picture.later();
    if (name === "figures") show(data);
  }

  // figures: null where the text broke off
  end(figures) {
    this.tracks.at(-1).end = figures;
    $("replay-own").disabled = $("save-recording").disabled = false;
    if (this.alone) return;
    this.picture.end();
    if (!figures) return;
    show(figures);
    $("limit").textContent = figures.limit;
    this.#point(figures);
  }

  #point({ tokens, speed, usd, joules }) {
    if (!tokens) return;
    const cs = Number($("cs").value);
    this.curves.usd.add({ cs, speed, cost: usd === null ? null : (usd / tokens) * 1e6 });
    this.curves.joules.add({ cs, speed, cost: joules === null ? null : joules / tokens });
    const here = this.curves.usd.points.filter((point) => point.cs === cs).length;
    $("curve-note").textContent = `${here} text${here > 1 ? "s" : ""} at ${cs}: `
      + (here < LEAST_TEXTS ? `an interval needs ${LEAST_TEXTS}.` : "the bars are the mean's 95 % interval.")
      + " Points compare where prompt and length are alike.";
  }

  #written() {
    return written(this.target, this.prompt, this.tracks);
  }

  #save() {
    const link = el("a", [], { download: "recording.json" });
    link.href = URL.createObjectURL(new Blob([this.#written()], { type: "application/json" }));
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

function sized(file) {
  if (file.size <= MOST_BYTES) return file;
  throw new Error(`this file has ${short(file.size / 2 ** 20)} MiB: a recording has up to ${MOST_BYTES / 2 ** 20}`);
}

function show(figures) {
  const rows = {
    "tokens": figures.tokens, "tokens/s": figures.speed.toFixed(1),
    "first token": `${(figures.first * 1000).toFixed(0)} ms`,
    "acceptance length": figures.acceptance_length.toFixed(2),
    "cost": figures.usd === null ? "no price is known" : `$${figures.usd.toFixed(6)}`,
    "energy here": figures.joules === null ? "not known" : `${short(figures.joules)} J`,
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
