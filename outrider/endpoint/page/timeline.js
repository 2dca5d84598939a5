// The timeline of a text by this machine's clock: forward passes, drafting, candidates and bytes.

import { el, svg } from "./elements.js";

const LABELS = 62, LANE = 20, GAP = 6, LEAST = 26; // pixels
const LANES = ["target", "draft", "sent", "up", "down"];

// chosen: the forward that is marked; choose(forward): one was clicked
export function drawTimeline(place, forwards, chosen, choose) {
  const wide = Math.max(place.clientWidth, 280), most = Math.floor((wide - LABELS) / LEAST);
  const at = forwards.indexOf(chosen), end = at < 0 ? forwards.length : Math.max(at + 1, Math.min(most, forwards.length));
  const shown = forwards.slice(Math.max(end - most, 0), end);
  if (!shown.length) {
    place.replaceChildren();
    return place.setAttribute("aria-label", "The timeline; no forward pass yet");
  }
  const from = Math.min(...shown.map(({ since, end: ended, seconds }) => Math.min(since, ended - seconds)));
  const to = Math.max(shown.at(-1).at, from + 1e-6);
  const x = (at) => LABELS + (Math.max(at - from, 0) / (to - from)) * (wide - LABELS);
  const top = Object.fromEntries(LANES.map((name, index) => [name, index * (LANE + GAP)]));
  const peak = Math.max(1, ...shown.map(({ up, down }) => Math.max(up, down)));
  const bar = (lane, start, stop, part) => svg("rect", { class: `lane-${lane}`, x: x(start),
    width: Math.max(x(stop) - x(start) - 1, 1), y: top[lane] + LANE * (1 - part), height: LANE * part });
  const height = LANES.length * (LANE + GAP);
  const columns = shown.map((one) => {
    const { since, at, end: ended, seconds, drafting, sent, up, down } = one;
    const start = Math.min(since, ended - seconds), length = Math.max(at - since, 1e-9);
    const ground = svg("rect", { class: one === chosen ? "column chosen" : "column", x: x(start), y: 0,
      width: Math.max(x(ended) - x(start), 1), height: height - GAP });
    const column = el(svg("g"), [ground, bar("target", ended - seconds, ended, 1)]);
    if (drafting) column.append(bar("draft", since, at, Math.min(drafting / length, 1)));
    if (up) column.append(bar("up", since, at, up / peak));
    if (down) column.append(bar("down", since, at, down / peak));
    column.append(...sent.map(({ at: when, count }) => bar("sent", when, when, Math.min(0.2 + count / 20, 1))));
    column.addEventListener("click", () => choose(one));
    return column;
  });
  const names = LANES.map((name) => label(name, 0, top[name] + 14, "start"));
  const axis = [label(`${from.toFixed(2)} s`, LABELS, height + 10, "start"),
    label(`${to.toFixed(2)} s`, wide, height + 10, "end"), label(`up and down: max ${bytes(peak)}`, LABELS, height + 24, "start")];
  place.replaceChildren(el(svg("svg", { width: wide, height: height + 28 }), [...columns, ...names, ...axis]));
  place.setAttribute("aria-label", told(shown, from, to));
}

function told(shown, from, to) {
  const sum = (read) => shown.reduce((all, one) => all + read(one), 0), sent = shown.flatMap((one) => one.sent);
  return `Forward passes ${shown[0].number} to ${shown.at(-1).number}, from ${from.toFixed(2)} to ${to.toFixed(2)} s: `
    + `${(1000 * sum((one) => one.seconds) / shown.length).toFixed(1)} ms per forward pass, `
    + `${sum((one) => one.calls)} draft calls, `
    + `${sent.reduce((all, { count }) => all + count, 0)} candidates in ${sent.length} messages, `
    + `${bytes(sum((one) => one.up))} up, ${bytes(sum((one) => one.down))} down`;
}

function bytes(count) {
  return count < 1000 ? `${count} B` : `${(count / 1000).toFixed(1)} kB`;
}

function label(text, x, y, anchor) {
  return el(svg("text", { x, y, "text-anchor": anchor, class: "quiet" }), [text]);
}
