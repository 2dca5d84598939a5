// Speed by cost: a point for each text, and a mark at the mean of each position of the knob.

import { el, svg } from "./elements.js";

const WIDTH = 320, HEIGHT = 150, LEFT = 48, RIGHT = 16, BOTTOM = 32, TOP = 18;

// points: {cs, speed, cost}
export function drawCurve(place, points) {
  place.hidden = !points.length;
  if (!points.length) return;
  const means = [...Map.groupBy(points, ({ cs }) => cs)].sort(([one], [other]) => one - other)
    .map(([cs, texts]) => ({ cs, texts, speed: mean(texts, "speed"), cost: mean(texts, "cost") }));
  const most = (name) => 1.1 * Math.max(1e-12, ...points.map((point) => point[name]));
  const cost = most("cost"), speed = most("speed");
  const x = (value) => LEFT + (value / cost) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / speed) * (HEIGHT - BOTTOM - TOP);
  const picture = [svg("path", { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, class: "axis" }),
    label("tokens/s", 2, 10), label(short(speed), LEFT - 4, TOP + 8, "end"), label("0", LEFT - 4, HEIGHT - BOTTOM, "end"),
    label("$ per million tokens", LEFT, HEIGHT - 4), label(short(cost), WIDTH - RIGHT, HEIGHT - 18, "end"),
    ...points.map((one) => svg("circle", { cx: x(one.cost), cy: y(one.speed), r: 3, class: "point" })),
    ...means.flatMap((one) => [svg("path", { d: `M${x(one.cost) - 5} ${y(one.speed)}l5 -5l5 5l-5 5z`, class: "mean" }),
      label(String(one.cs), x(one.cost) + 8, y(one.speed) - 6)])];
  place.replaceChildren(el(svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` }), picture));
  place.setAttribute("aria-label", means.map((one) => `at ${one.cs}: ${short(one.speed)} tokens/s, `
    + `$${short(one.cost)} per million tokens, texts: ${one.texts.length}`).join("; "));
}

// Three digits, without an exponent.
export function short(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

function mean(texts, name) {
  return texts.reduce((sum, text) => sum + text[name], 0) / texts.length;
}

function label(text, x, y, anchor = "start") {
  return el(svg("text", { x, y, "text-anchor": anchor, class: "quiet" }), [text]);
}
