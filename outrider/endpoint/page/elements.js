// Small helpers to build the document.

const SVG = "http://www.w3.org/2000/svg";

// Paths of icons in a square of 24
const ICONS = {
  copy: "M9 9h11v11H9zM5 15H4V4h11v1", done: "M5 13l4 4L19 7", edit: "M4 20l1-5L16 4l4 4L9 19z",
  again: "M4 11a8 8 0 1 1 2 6M4 18v-5h5", previous: "M15 5l-7 7 7 7", next: "M9 5l7 7-7 7",
  on: "M7 5l11 7-11 7z",
};

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

export function iconButton(icon, label, action) {
  const made = button(drawn(icon), action, label);
  made.className = "icon";
  made.title = label;
  return made;
}

// A button that copies what text() returns, and shows that it did.
export function copyButton(label, text) {
  const made = iconButton("copy", label, async () => {
    await copy(text());
    made.replaceChildren(drawn("done"));
    made.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      made.replaceChildren(drawn("copy"));
      made.setAttribute("aria-label", label);
    }, 1500);
  });
  return made;
}

// Downloads a text under this name.
export function save(name, text) {
  const link = el("a", [], { download: name });
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.click();
  URL.revokeObjectURL(link.href);
}

// Redraws, and puts the focus back where its element was only moved.
export function keepFocus(draw) {
  const focused = document.activeElement;
  draw();
  if (focused?.isConnected && document.activeElement !== focused) focused.focus();
}

function drawn(icon) {
  const made = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon" });
  return el(made, [svg("path", { d: ICONS[icon] })]);
}

// Browsers have no clipboard for pages without TLS from other machines: there a selection is copied.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", [text], { class: "hidden" }), focused = document.activeElement;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}
