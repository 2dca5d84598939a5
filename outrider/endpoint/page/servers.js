// The servers that the user added, and the one in use. Tokens are never stored.

import { $, button, el } from "./elements.js";
import { read } from "./conversations.js";
import { call, useKey } from "./server.js";

const KEPT = "outrider.servers.2", POLL_MS = 500;

export class Servers {
  // changed(state): is called with the state of the target in use; failed(error)
  constructor(changed, failed) {
    this.all = read(KEPT, []).filter((one) => typeof one?.address === "string");
    this.tokens = new Map();
    this.changed = changed;
    this.failed = failed;
    $("open-servers").addEventListener("click", () => { this.draw(); $("servers").showModal(); });
    $("close-servers").addEventListener("click", () => $("servers").close());
    $("server-form").addEventListener("submit", (event) => { event.preventDefault(); this.add(); });
    $("key-form").addEventListener("submit", (event) => event.preventDefault());
    $("api-key").addEventListener("change", () => { useKey($("api-key").value); this.refresh(); });
  }

  async refresh() {
    let state;
    try { state = await call("page/state"); } catch (error) { state = { running: false, reason: error.message }; }
    if (!this.changing) this.changed(this.state = state);
  }

  // Asks again and again while the page is seen.
  async watch() {
    if (!document.hidden) await this.refresh();
    setTimeout(() => this.watch(), POLL_MS);
  }

  add() {
    const value = (name) => $(`server-${name}`).value.trim();
    const server = {
      name: value("name"), address: value("address"), model_name: value("model"),
      draft_model: value("draft"), draft: $("server-alone").checked ? "none" : "",
      tls: $("server-tls").checked, ca: value("ca"),
    };
    this.tokens.set(server.name, value("token"));
    this.all = [...this.all.filter((one) => one.name !== server.name), server];
    localStorage.setItem(KEPT, JSON.stringify(this.all));
    $("server-form").reset();
    this.draw();
  }

  remove(name) {
    this.all = this.all.filter((one) => one.name !== name);
    localStorage.setItem(KEPT, JSON.stringify(this.all));
    this.draw();
  }

  async start({ name, ...settings }) {
    $("status").textContent = `starting ${name}`;
    await this.change("page/start", { ...settings, token: this.tokens.get(name) ?? "" });
  }

  // Starts the server of this name unless it is in use.
  async use(name) {
    const wanted = this.all.find((one) => one.name === name);
    if (!wanted) throw new Error(`the server ${name} of this conversation is missing from Servers`);
    const { running, address, model } = this.state ?? {};
    if (running && address === wanted.address && (wanted.model_name || model) === model) return;
    await this.start(wanted);
    if (!this.state.running) throw new Error(`${name} is not available: ${this.state.reason}`);
  }

  async change(path, body) {
    this.changing = true;
    try {
      this.changed(this.state = await call(path, body));
    } catch (error) {
      this.failed(error);
    }
    this.changing = false;
    await this.refresh();
    this.draw();
  }

  draw() {
    const running = this.state?.running ? this.state.address : null;
    const rows = this.all.map((one) => el("li", [
      el("span", [`${one.name}: ${one.address}${one.address === running ? ", in use" : ""}`]),
      button("Start", () => this.start(one), `Start ${one.name}`),
      button("Remove", () => this.remove(one.name), `Remove ${one.name}`),
    ]));
    if (running) {
      const who = `${this.state.model}, ${drafted(this.state)}`;
      const stop = button("Stop", () => this.change("page/stop", {}), "Stop the target in use");
      rows.unshift(el("li", [el("span", [`In use: ${running} (${who})`]), stop]));
    }
    $("server-list").replaceChildren(...rows);
  }
}

export function drafted({ draft }) {
  return draft ? `drafted by ${draft}` : "without a draft";
}
