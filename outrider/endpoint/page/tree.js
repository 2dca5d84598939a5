// Draws the candidates of a forward pass as a tree. Columns are as wide as their tokens; the place
// around it scrolls.

import { el, svg } from "./elements.js";
import { NAMES, ROOT, percent, shorten } from "./forwards.js";

const GAP = 34, LINE = 26, LEFT = 42, LETTER = 7.9; // pixels, at the 13 px of live.css

// Returns the items that can have the focus, in the order in which they are read.
export function drawTree(place, forward) {
  const nodes = [...alone(forward), ...forward.nodes], lines = new Map(), items = [];
  const below = (number) => nodes.filter(({ parent }) => parent === number);
  let next = 0;
  const lay = (node, depth) => {
    const item = { node, depth };
    items.push(item);
    lines.set(node.number, next);
    below(node.number).forEach((child, index) => { next += index ? 1 : 0; lay(child, depth + 1); });
  };
  below(ROOT).forEach((node, index) => { next += index ? 1 : 0; lay(node, 0); });
  const widest = [], columns = [LEFT]; // by depth
  for (const { node, depth } of items) widest[depth] = Math.max(widest[depth] ?? 0, width(node));
  for (const wide of widest) columns.push(columns.at(-1) + wide + GAP);
  const x = (depth) => columns[depth], y = (number) => 18 + (lines.get(number) ?? 0) * LINE;
  const edges = items.map(({ node, depth }) => {
    const start = depth ? x(depth - 1) + width(nodes.find(({ number }) => number === node.parent)) + 4 : 12;
    const from = y(node.parent) - 4.5, to = y(node.number) - 4.5, bend = x(depth) - 10;
    return svg("path", { class: classes("edge", node),
      d: `M${start} ${from}H${bend - 12}C${bend} ${from} ${bend - 12} ${to} ${bend} ${to}H${x(depth) - 4}` });
  });
  items.forEach((item) => { item.mark = mark(item, x(item.depth), y(item.node.number), below); });
  const size = { width: columns.at(-1) - GAP + 12, height: 18 + next * LINE + 10 };
  const root = svg("circle", { cx: 8, cy: 13.5, r: 4, class: "root" });
  edges.sort((one, other) => one.matches(".taken") - other.matches(".taken")); // the path on top
  place.replaceChildren(el(svg("svg", { ...size, role: "none" }),
    [root, ...edges, ...items.map(({ mark: one }) => one)]));
  place.setAttribute("role", items.length ? "tree" : "group"); // a tree has items
  return items;
}

// Who proposed it, with its probability, in words.
export function words({ text, by, chance, late, taken }) {
  const claim = chance === null ? "" : `, probability ${percent(chance)}`;
  const who = taken && by === "target" && chance !== null
    ? `the target; the same guess${claim} arrived too late` : `${NAMES[by]}${claim}`;
  return `${shorten(text, 40)}: ${who}${taken ? ", accepted" : late ? ", arrived too late" : ""}`;
}

// Tokens of the path that were no candidates of this client, in the place where they would hang.
function alone({ made }) {
  return made.flatMap((token, index) => token.number !== null ? [] : [{ ...token, taken: true,
    number: `made ${index}`, parent: index ? made[index - 1].number ?? `made ${index - 1}` : ROOT }]);
}

function mark({ node, depth }, x, y, below) {
  const children = below(node.number).length, box = width(node);
  const parts = [svg("rect", { x: x - 4, y: y - 15, width: box + 8, height: 21, rx: 4 }),
    el(svg("text", { x, y }), [shorten(node.text)])];
  if (node.chance !== null) parts.push(svg("rect", { class: "chance", x, y: y + 3, height: 2, width: box * node.chance }));
  const item = svg("g", { class: classes(`node by-${node.by}`, node), role: "treeitem", tabindex: -1,
    "aria-level": depth + 1, "aria-label": words(node), "aria-selected": Boolean(node.taken) });
  if (children) item.setAttribute("aria-expanded", "true");
  return el(item, parts);
}

function width({ text }) {
  return Math.max(shorten(text).length * LETTER, 10);
}

function classes(name, { taken, late }) {
  return `${name}${taken ? " taken" : ""}${late && !taken ? " late" : ""}`;
}
