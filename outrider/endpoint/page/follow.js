// Keeps the end of a text in view until the user scrolls away from it.

const NEAR = 48; // pixels

export class Follow {
  // box: what scrolls; inside: what grows; jump: a button that leads to the end
  constructor(box, inside, jump) {
    Object.assign(this, { box, jump, held: true });
    box.addEventListener("scroll", () => {
      this.held = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
      jump.hidden = this.held;
    });
    jump.addEventListener("click", () => this.hold());
    const sizes = new ResizeObserver(() => { if (this.held) this.hold(); });
    sizes.observe(box);
    sizes.observe(inside);
  }

  hold() {
    this.held = true;
    this.jump.hidden = true;
    this.box.scrollTop = this.box.scrollHeight;
  }
}
