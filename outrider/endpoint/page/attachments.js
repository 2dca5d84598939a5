// Text files that go with a message. The browser reads them, and they travel as text.

import { $, button, el } from "./elements.js";

const MAX_BYTES = 256 * 2 ** 10;

export class Attachments {
  // failed(error): is called for a file that cannot be attached
  constructor(failed) {
    this.files = []; // {name, text}
    $("attach").addEventListener("click", () => $("attach-file").click());
    $("attach-file").addEventListener("change", async ({ target }) => {
      const chosen = [...target.files];
      target.value = "";
      for (const file of chosen) {
        try { this.files.push({ name: file.name, text: await textOf(file) }); } catch (error) { failed(error); }
      }
      this.draw();
      $("message").focus();
    });
  }

  take() {
    const taken = this.files;
    this.files = [];
    this.draw();
    return taken;
  }

  draw() {
    $("attached").replaceChildren(...this.files.map((file) => el("li", [
      title(file), button("\u00d7", () => { this.files = this.files.filter((one) => one !== file); this.draw(); }, `Remove ${file.name}`),
    ])));
  }
}

// A message as the model reads it: its files, each in a block of its own, and its text.
export function withFiles({ content, files = [] }) {
  return [...files.map(block), content].filter(Boolean).join("\n\n");
}

// A file of a message on the page: its name, and its text once it is opened.
export function drawFile(file) {
  return el("details", [el("summary", [title(file)]), el("pre", [file.text])], { class: "part" });
}

function block({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

function title({ name, text }) {
  return `${name}, ${text.length < 1024 ? `${text.length} characters` : `${Math.round(text.length / 1024)} k characters`}`;
}

async function textOf(file) {
  if (file.size > MAX_BYTES) {
    throw new Error(`${file.name} has ${Math.ceil(file.size / 1024)} KiB: a file may have up to ${MAX_BYTES / 1024}`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch { /* it is told below */ }
  throw new Error(`${file.name} is not a text file: UTF-8 is needed`);
}
