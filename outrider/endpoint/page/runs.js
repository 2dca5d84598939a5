// Who named each piece of an answer: runs [{end, by}] by ascending end, and the text in their colours.

import { el } from "./elements.js";

export function push(message, { text, by }) {
  const { runs } = message, last = runs.at(-1), end = (message.content += text).length;
  if (last?.by === by) last.end = end;
  else runs.push({ end, by });
}

// Puts in place what an answer that goes on has: the last letters may be made again.
export function cut(message, { text, tokens }) {
  const { runs, going } = message, by = runs.find(({ end }) => end >= text.length)?.by ?? "target";
  going.made.length = tokens;
  message.runs = runs.filter(({ end }) => end < text.length);
  message.content = text;
  if (text) message.runs.push({ end: text.length, by });
}

export function colour({ content, runs = [] }) {
  let at = 0;
  const spans = [...runs, { end: content.length, by: "target" }].map(({ end, by }) => {
    const span = el("span", [content.slice(at, end)], { class: `by-${by}` });
    at = end;
    return span;
  });
  return el("div", spans.filter((span) => span.textContent), { class: "plain" });
}
