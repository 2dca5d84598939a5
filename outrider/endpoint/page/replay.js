// Replays the tracks of a recording side by side, all on one clock that begins with each request.

import { $, el } from "./elements.js";
import { Forwards } from "./forwards.js";
import { drafted } from "./servers.js";

const TICKS = 1000; // positions of the clock's slider

export class Replay {
  // picture: shows the forwards of the first track
  constructor(picture) {
    this.picture = picture;
    this.tracks = [];
    this.playing = false;
    $("play").addEventListener("click", () => this.#play(!this.playing));
    $("clock").addEventListener("input", () => { this.#play(false); this.#go((this.length * $("clock").value) / TICKS); });
    $("stage").addEventListener("close", () => this.#leave());
  }

  open({ model, draft, device, prompt, tracks }) {
    this.before = this.picture.forwards;
    this.tracks = tracks.map((track) => ({ track, ...pane(track.name) }));
    this.length = Math.max(...tracks.flatMap(({ events }) => events.map(([, { at }]) => at)), 0.001);
    $("replay-panes").replaceChildren(...this.tracks.map(({ box }) => box));
    $("replay-prompt").textContent = prompt;
    $("replay-about").textContent = `A replay: ${model ?? "a target"} on ${device ?? "an unknown device"}, `
      + `${drafted({ draft })}.${tracks.length > 1 ? method(tracks[1].end) : ""}`
      + (tracks.some(({ cut }) => cut) ? " The recording was cut at its maximum length." : "");
    $("replay").hidden = false;
    this.time = Infinity;
    this.picture.enlarge();
    this.#go(0);
    this.#play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  #leave() {
    this.#play(false);
    if (this.tracks.length) {
      this.picture.follow(this.before);
      this.picture.end();
    }
    this.tracks = [];
    $("replay").hidden = true;
  }

  #play(yes) {
    const begin = yes && !this.playing;
    this.playing = yes;
    $("play").textContent = yes ? "Pause" : "Play";
    if (!begin) return;
    if (this.time >= this.length) this.#go(0);
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.#go(this.time + ((now - last) / 1000) * Number($("pace").value));
      last = now;
      if (this.time >= this.length) this.#play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  #go(time) {
    if (time < this.time) {
      this.forwards = new Forwards();
      this.tracks.forEach((one) => { Object.assign(one, { next: 0, tokens: 0 }); one.text.replaceChildren(); });
      this.picture.follow(this.forwards);
    }
    this.time = Math.min(time, this.length);
    this.tracks.forEach((one, index) => this.#feed(one, index === 0));
    $("clock").value = (TICKS * this.time) / this.length;
    $("clock").setAttribute("aria-valuetext", `${this.time.toFixed(1)} s`);
    $("time").textContent = `${this.time.toFixed(2)} s`;
    if (this.time >= this.length) this.picture.end();
    else this.picture.later();
  }

  #feed(one, first) {
    const { events } = one.track, from = one.next;
    while (one.next < events.length && events[one.next][1].at <= this.time) {
      const [name, data] = events[one.next++];
      if (first) this.forwards.event(name, data);
      if (name === "tokens") one.tokens += data.ids.length;
      if (name === "made" || name === "piece") one.text.append(el("span", [data.text], { class: `by-${data.by ?? "target"}` }));
    }
    if (one.next !== from) one.text.scrollTop = one.text.scrollHeight;
    const ended = one.next === events.length ? events.at(-1)?.[1].at ?? 0 : null;
    one.note.textContent = `${one.tokens} tokens` + (ended === null ? "" : `, finished at ${ended.toFixed(2)} s, `
      + `${(one.tokens / Math.max(ended, 1e-9)).toFixed(1)} tokens/s`);
  }
}

// How two texts were made. end: the figures of the second
function method(end) {
  return " Generated one after the other; both clocks begin with the request."
    + (end?.reused ? ` The second had ${Number(end.reused)} tokens of the prompt in the target's cache.` : "");
}

function pane(name) {
  const text = el("div", [], { class: "replay-text", tabindex: 0, role: "region", "aria-label": name }), note = el("p", [], { class: "note" });
  return { box: el("section", [el("h3", [name]), text, note]), text, note };
}
