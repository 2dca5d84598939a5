// Speed by cost: every finished text, and the mean of each position of the knob with its interval.

import { el, svg } from "./elements.js";

const WIDTH = 320, HEIGHT = 170, LEFT = 48, RIGHT = 16, BOTTOM = 32, TOP = 18, MOST = 200;
export const LEAST_TEXTS = 3; // of a position, for an interval
// Student's t for 95 %, by texts less one
const T = [, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.1, 2.09, 2.09];

export class Curve {
  // unit: of the cost
  constructor(place, unit) {
    this.place = place;
    this.unit = unit;
    this.points = []; // {cs, speed, cost}
    this.draw();
  }

  add(point) {
    if (point.cost !== null) this.points = [...this.points, point].slice(-MOST);
    this.draw();
  }

  draw() {
    this.place.hidden = !this.points.length;
    const positions = [...Map.groupBy(this.points, ({ cs }) => cs)].sort(([one], [other]) => one - other);
    const means = positions.map(([cs, points]) => ({ cs, texts: points.length,
      speed: estimate(points.map(({ speed }) => speed)), cost: estimate(points.map(({ cost }) => cost)) }));
    const most = (name) => 1.1 * Math.max(1e-12, ...this.points.map((point) => point[name]),
      ...means.map((one) => one[name].mean + one[name].half));
    const cost = most("cost"), speed = most("speed");
    const x = (value) => LEFT + (Math.max(value, 0) / cost) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (Math.max(value, 0) / speed) * (HEIGHT - BOTTOM - TOP);
    const line = (x1, y1, x2, y2) => svg("path", { d: `M${x1} ${y1}L${x2} ${y2}`, class: "interval" });
    const picture = [svg("path", { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, class: "axis" }),
      label("tokens/s", 2, 10), label(short(speed), LEFT - 4, TOP + 8, "end"), label("0", LEFT - 4, HEIGHT - BOTTOM, "end"),
      label(this.unit, LEFT, HEIGHT - 4), label(short(cost), WIDTH - RIGHT, HEIGHT - 18, "end")];
    picture.push(...this.points.map((one) => svg("circle", { cx: x(one.cost), cy: y(one.speed), r: 3, class: "point" })));
    for (const { cs, texts, speed: fast, cost: dear } of means) {
      const [at, up] = [x(dear.mean), y(fast.mean)];
      if (texts >= LEAST_TEXTS) {
        picture.push(line(x(dear.mean - dear.half), up, x(dear.mean + dear.half), up),
          line(at, y(fast.mean - fast.half), at, y(fast.mean + fast.half)));
      }
      picture.push(svg("path", { d: `M${at - 5} ${up}l5 -5l5 5l-5 5z`, class: "mean" }), label(String(cs), at + 8, up - 6));
    }
    this.place.replaceChildren(el(svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` }), picture));
    this.place.setAttribute("aria-label", means.map((one) => `at ${one.cs}: ${told(one.speed, one.texts)} tokens a second, `
      + `${told(one.cost, one.texts)} ${this.unit}, ${one.texts} text${one.texts > 1 ? "s" : ""}`).join("; ") || "no text yet");
  }
}

// half: of the 95 % interval of the mean; 0 where there are too few texts for one
function estimate(values) {
  const count = values.length, mean = values.reduce((sum, value) => sum + value, 0) / count;
  if (count < LEAST_TEXTS) return { mean, half: 0 };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
  return { mean, half: (T[count - 1] ?? 1.96 + 2.4 / count) * Math.sqrt(variance / count) };
}

function told({ mean, half }, texts) {
  return texts < LEAST_TEXTS ? short(mean) : `${short(mean)} give or take ${short(half)}`;
}

// Three digits, without an exponent.
export function short(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

function label(text, x, y, anchor = "start") {
  return el(svg("text", { x, y, "text-anchor": anchor, class: "quiet" }), [text]);
}
