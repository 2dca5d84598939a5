// The text of an answer while it comes and after: Markdown, thoughts, calls of functions, JSON.
// Only blocks that changed are drawn again, so a selection and an opened part stay.

import { el } from "./elements.js";
import { blocksOf, drawBlock } from "./markdown.js";

const PART = /<(think|tool_call)>\s*([\s\S]*?)(?:<\/\1>|$)/g;

export class RichText {
  constructor(place) {
    this.place = place;
    this.drawn = []; // {source, element}
  }

  draw(text) {
    const wanted = parts(text);
    let same = 0;
    while (same < wanted.length && this.drawn[same]?.source === wanted[same].source) same += 1;
    this.drawn.splice(same).forEach(({ element }) => element.remove());
    for (const { source, make } of wanted.slice(same)) {
      const element = make();
      this.place.append(element);
      this.drawn.push({ source, element });
    }
  }
}

function parts(text) {
  const json = parsed(text);
  if (json) return [called(json) ? call(text, json) : folded("JSON", text, pretty(json))];
  const made = [];
  let at = 0;
  for (const found of text.matchAll(PART)) {
    const [whole, kind, inside] = found;
    made.push(...said(text.slice(at, found.index)));
    at = found.index + whole.length;
    made.push(kind === "think" ? thought(inside) : call(inside, parsed(inside)));
  }
  return [...made, ...said(text.slice(at))];
}

function said(text) {
  return blocksOf(text).map((block) => ({ source: block.raw, make: () => drawBlock(block) }));
}

function thought(text) {
  const make = () => details("Thoughts", blocksOf(text).map(drawBlock), false);
  return { source: `<think>${text}`, make };
}

function call(text, json) {
  const given = json && (json.arguments ?? json.parameters);
  const name = json?.name ? `Calls ${json.name}` : "Calls a function";
  return folded(name, text, given === undefined || given === null ? text : pretty(given));
}

function folded(name, source, text) {
  const block = { type: "code", raw: text, text, lang: "json" };
  return { source: `${name}:${source}`, make: () => details(name, [drawBlock(block)], true) };
}

function details(name, children, open) {
  return el("details", [el("summary", [name]), ...children], open ? { open: "", class: "part" } : { class: "part" });
}

function called(json) {
  return typeof json.name === "string" && (json.arguments ?? json.parameters) instanceof Object;
}

// The object or list that a text is; null for other texts.
function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try { return Object(JSON.parse(text)); } catch { return null; }
}

function pretty(json) {
  return JSON.stringify(json, null, 2);
}
