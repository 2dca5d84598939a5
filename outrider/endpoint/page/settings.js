// The settings of a conversation: system prompt, model and sampling.

import { $, el } from "./elements.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Settings {
  constructor(conversations, servers) {
    Object.assign(this, { conversations, servers });
    $("open-settings").addEventListener("click", () => { this.fill(); $("settings").showModal(); });
    $("close-settings").addEventListener("click", () => $("settings").close());
    $("settings-form").addEventListener("submit", (event) => { event.preventDefault(); $("settings").close(); });
    $("settings").addEventListener("close", () => { this.draw(); $("message").focus(); });
    $("settings-form").addEventListener("input", () => this.read());
  }

  fill() {
    const { settings } = this.conversations.current;
    const choices = this.servers.all.map(({ name }) => el("option", [name], { value: name }));
    $("server").replaceChildren(el("option", ["the server in use"], { value: "" }), ...choices);
    for (const name of ["system", "server", ...NUMBERS]) $(name).value = settings[name] ?? "";
    $("stop_strings").value = settings.stop.join("\n");
  }

  // Takes what is valid. An empty temperature is the model's own, an empty seed a random one.
  read() {
    const settings = { system: $("system").value, server: $("server").value };
    for (const name of NUMBERS) {
      const box = $(name), empty = box.value === "";
      if (box.validity.valid && !(empty && box.required)) settings[name] = empty ? null : Number(box.value);
    }
    settings.stop = $("stop_strings").value.split("\n").filter(Boolean);
    this.conversations.set(settings);
  }

  draw() {
    const { temperature, max_tokens, seed, system, server } = this.conversations.current.settings;
    const words = [server, `temperature ${temperature ?? this.servers.state?.temperature ?? "auto"}`, `${max_tokens} tokens`,
      seed !== null && `seed ${seed}`, system && "system prompt"].filter(Boolean).join(" \u00b7 ");
    $("open-settings").textContent = words;
    $("open-settings").setAttribute("aria-label", `Settings: ${words}`);
  }
}
