// The panel beside the chat: figures of the text, its picture, replays, and the knob.

import { drawCurve, short } from "./curve.js";
import { $, el, save } from "./elements.js";
import { Forwards, NAMES } from "./forwards.js";
import { Picture } from "./picture.js";
import { MOST_BYTES, Track, read, written } from "./recording.js";
import { Replay } from "./replay.js";
import { call } from "./server.js";

const PARTS = { draft: "draft", wire: "network and rest", queue: "queue", target: "target" };

export class Live {
  // failed(error): is called where the target cannot be steered, and for a file that is no recording
  constructor(failed) {
    this.picture = new Picture();
    this.replay = new Replay(this.picture);
    this.points = []; // of the curve: {cs, speed, cost}
    this.tracks = []; // of the last message: with the draft, then without it if that was requested
    this.target = {}; // the state of the target in use
    this.steered = ""; // the target whose knob is shown
    this.picture.follow(new Forwards());
    $("cs").addEventListener("input", async () => {
      $("cs-value").textContent = $("cs").value;
      try { await call("page/steer", { cs: Number($("cs").value) }); } catch (error) { failed(error); }
    });
    $("replay-own").addEventListener("click", () => this.replay.open(read(this.#written())));
    $("save-recording").addEventListener("click", () => save("recording.json", this.#written()));
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

  // A text by this name begins: with the draft, or without it for the same message.
  begin(name, prompt) {
    this.alone = name === "target-only";
    this.tracks = this.alone ? [...this.tracks.slice(0, 1), new Track(name)] : [new Track(name)];
    this.prompt = prompt;
    $("no-text").hidden = true;
    $("limit").textContent = "";
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

  // figures: null if the text was interrupted
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

  #point({ tokens, speed, usd }) {
    if (!tokens || usd === null) return;
    this.points = [...this.points, { cs: Number($("cs").value), speed, cost: (usd / tokens) * 1e6 }].slice(-200);
    drawCurve($("curve"), this.points);
  }

  #written() {
    return written(this.target, this.prompt, this.tracks);
  }
}

function sized(file) {
  if (file.size <= MOST_BYTES) return file;
  throw new Error(`this file has ${short(file.size / 2 ** 20)} MiB: a recording may have up to ${MOST_BYTES / 2 ** 20}`);
}

function show(figures) {
  const rows = {
    "tokens": figures.tokens, "tokens/s": figures.speed.toFixed(1),
    "first token": `${(figures.first * 1000).toFixed(0)} ms`,
    "acceptance length": figures.acceptance_length.toFixed(2),
    "cost": figures.usd !== null && `$${figures.usd.toFixed(6)}`,
    "energy on this machine": figures.joules !== null && `${short(figures.joules)} J`,
  };
  $("figures").replaceChildren(...Object.entries(rows).filter(([, value]) => value !== false)
    .flatMap(([name, value]) => [el("dt", [name]), el("dd", [String(value)])]));
  for (const part of ["text-figures", "text-sources"]) $(part).hidden = false;
  const by = { ...figures.accepted_by };
  by.target = figures.tokens - Object.values(by).reduce((sum, count) => sum + count, 0);
  $("legend").replaceChildren(...Object.entries(by).filter(([, count]) => count).map(([name, count]) =>
    el("li", [`${NAMES[name]}: ${count}`], { class: `by-${name}` })));
  showWhere(figures);
}

// The draft works while the target does, so its time is a bar of its own.
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
