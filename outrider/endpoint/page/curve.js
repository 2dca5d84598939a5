// Speed by cost: a point for every finished text, at the position of the knob where it was made.

import { el, svg } from "./elements.js";

const WIDTH = 320, HEIGHT = 170, LEFT = 44, BOTTOM = 30, MOST = 60;

export class Curve {
  constructor(place) {
    this.place = place;
    this.points = []; // {cs, speed, cost, priced}
    this.draw();
  }

  // cost: US dollars a million tokens where the target has a price, else its forwards a token
  add(point) {
    this.points = [...this.points, point].slice(-MOST);
    this.draw();
  }

  draw() {
    const priced = this.points.at(-1)?.priced ?? false;
    const shown = this.points.filter((point) => point.priced === priced);
    const unit = priced ? "$ a million tokens" : "target forwards a token";
    const picture = [
      svg("path", { d: `M${LEFT} 8V${HEIGHT - BOTTOM}H${WIDTH - 8}`, class: "axis", fill: "none" }),
      label("tokens/s", 2, 12), label(unit, LEFT, HEIGHT - 4),
    ];
    const most = (name) => Math.max(...shown.map((point) => point[name]), 1e-9) * 1.1;
    if (shown.length) {
      const cost = most("cost"), speed = most("speed");
      picture.push(label(`${+speed.toPrecision(2)}`, 2, 26), label(`${+cost.toPrecision(2)}`, WIDTH - 44, HEIGHT - 18));
      shown.forEach((point, index) => {
        const x = LEFT + (point.cost / cost) * (WIDTH - LEFT - 16);
        const y = HEIGHT - BOTTOM - (point.speed / speed) * (HEIGHT - BOTTOM - 14);
        const now = index === shown.length - 1;
        picture.push(svg("circle", { cx: x, cy: y, r: 4, class: now ? "point now" : "point" }));
        picture.push(label(String(point.cs), x + 6, y + 4));
      });
    }
    this.place.replaceChildren(el(svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` }), picture));
    const last = shown.at(-1);
    this.place.setAttribute("aria-label", last
      ? `${shown.length} texts; the last at ${last.speed.toFixed(1)} tokens a second, ${last.cost.toPrecision(3)} ${unit}`
      : "Speed by cost; no text yet");
  }
}

function label(text, x, y) {
  return el(svg("text", { x, y, class: "quiet" }), [text]);
}
