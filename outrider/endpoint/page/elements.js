// Small helpers to build the document.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

// An element with these children: nodes, or text.
export function el(kind, children = [], attributes = {}) {
  const made = typeof kind === "string" ? document.createElement(kind) : kind;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function svg(kind, attributes = {}) {
  return el(document.createElementNS(SVG, kind), [], attributes);
}

export function button(text, action, label = text) {
  const made = el("button", [text], { type: "button", "aria-label": label });
  made.addEventListener("click", action);
  return made;
}
