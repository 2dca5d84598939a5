// The chat page: messages, the text that is being made, and what can be watched of it.

import { Conversations, title } from "./conversations.js";
import { Curve } from "./curve.js";
import { $, button, el } from "./elements.js";
import { render } from "./markdown.js";
import { call, listen } from "./server.js";
import { Servers } from "./servers.js";
import { Tree } from "./tree.js";

const NAMES = { target: "the target alone", model: "the draft", copy: "copied text",
  host: "the draft beside the target", device: "a second device" };
const PARTS = { draft: "draft", wire: "wire and rest", queue: "queue", target: "target" };

const conversations = new Conversations();
const servers = new Servers(showState, fail);
const tree = new Tree($("tree"));
const curve = new Curve($("curve"));
let running = null; // the AbortController of the texts that are being made

// A text on its way: what came so far, and the element that shows it.
class LiveText {
  constructor(place) {
    this.place = place;
    this.text = "";
    this.runs = [];
    this.waiting = false;
  }

  push({ text, by }) {
    this.text += text;
    const last = this.runs.at(-1);
    if (last?.by === by) last.end = this.text.length;
    else this.runs.push({ end: this.text.length, by });
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.waiting = false;
    render(this.text, this.runs, this.place);
    follow();
  }
}

function showState(state) {
  $("status").textContent = state.running
    ? `${state.model} at ${state.address}, drafted by ${state.draft ?? "nobody"}, on ${state.device}`
    : `no target: ${state.reason}`;
  $("cs").disabled = !state.running || !state.priced || !state.draft;
  $("cs-note").textContent = state.priced ? `prices: ${state.priced}`
    : "Without a price of the target there is only speed: start it with --usd_per_hour.";
  if (state.running) $("cs-value").textContent = $("cs").value = Math.round(state.weight * 100);
}

function fail(error) {
  $("error").textContent = error.message;
  $("error").hidden = false;
}

function drawAll() {
  const current = conversations.current;
  $("list").replaceChildren(...conversations.all.map((one) => el("li", [
    button(title(one), () => { conversations.open(one.id); drawAll(); }),
    button("\u00d7", () => { conversations.remove(one.id); drawAll(); }, `Remove ${title(one)}`),
  ], one === current ? { class: "current" } : {})));
  $("messages").replaceChildren(...(current?.messages ?? []).map(drawn));
  follow(true);
}

function drawn(message) {
  const text = el("div", [], { class: "text" });
  if (message.role === "user") text.textContent = message.content;
  else render(message.content, message.runs ?? [], text);
  const who = { user: "You", system: "System", assistant: "Target" }[message.role];
  const note = message.note ? [el("p", [message.note], { class: "note" })] : [];
  return el("article", [el("h4", [who]), text, ...note], { class: `message ${message.role}` });
}

function follow(always = false) {
  const box = $("messages");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) {
    box.scrollTop = box.scrollHeight;
  }
}

async function send() {
  const content = $("message").value;
  if (!content.trim() || running) return;
  if (!conversations.current) conversations.begin();
  const conversation = conversations.current;
  conversation.messages.push({ role: "user", content });
  conversations.keep();
  $("message").value = "";
  $("error").hidden = true;
  drawAll();
  const both = $("beside").checked;
  const places = both ? [pane("Outrider"), pane("target-only")] : [pane("")];
  const article = el("article", [el("h4", ["Target"]),
    el("div", places.map((place) => place.box), { class: both ? "pair" : "" }),
  ], { class: "message assistant" });
  $("messages").append(article);
  begin(true);
  try {
    const seed = Math.floor(Math.random() * 2 ** 31);
    const texts = places.map((place, index) => make(conversation, place, seed, index === 1));
    const [made] = await Promise.all(texts);
    conversation.messages.push(made);
  } catch (error) {
    conversation.messages.pop();
    $("message").value = content;
    fail(error);
  } finally {
    begin(false);
    conversations.keep();
    if (!both) drawAll();
  }
}

function pane(name) {
  const text = el("div", [], { class: "text" }), note = el("p", [], { class: "note" });
  const head = name ? [el("h4", [name])] : [];
  return { box: el("div", [...head, text, note]), text, note };
}

async function make(conversation, place, seed, alone) {
  const live = new LiveText(place.text), body = {
    messages: conversation.messages.map(({ role, content }) => ({ role, content })),
    max_tokens: Number($("tokens").value), temperature: Number($("temperature").value),
    seed, target_only: alone,
  };
  let ended = null, failed = null;
  const on = {
    piece: (piece) => live.push(piece),
    figures: (figures) => { place.note.textContent = brief(figures); if (!alone) show(figures); },
    end: (figures) => { ended = figures; },
    error: (error) => { failed = new Error(error.message); },
  };
  if (!alone) {
    tree.reset();
    Object.assign(on, { nodes: (sent) => tree.sent(sent), tokens: (sent) => tree.committed(sent) });
  }
  try {
    await listen("page/texts", body, on, running.signal);
  } catch (error) {
    if (!running.signal.aborted) throw error;
  }
  if (failed) throw failed;
  live.draw();
  if (ended) {
    place.note.textContent = brief(ended);
    if (!alone) { show(ended); point(ended); }
  }
  const note = ended ? brief(ended) : "stopped";
  return { role: "assistant", content: live.text, runs: live.runs, note };
}

function begin(yes) {
  running = yes ? new AbortController() : null;
  $("stop").disabled = !yes;
  $("send").disabled = yes;
  $("messages").setAttribute("aria-busy", String(yes));
  if (!yes) $("message").focus();
}

function brief(figures) {
  const cost = figures.usd === null ? "" : `, $${figures.usd.toFixed(6)}`;
  return `${figures.tokens} tokens, ${figures.speed.toFixed(1)} tokens/s, `
    + `${figures.acceptance_length.toFixed(2)} tokens a forward${cost}`;
}

function show(figures) {
  const rows = {
    "tokens": figures.tokens, "tokens/s": figures.speed.toFixed(1),
    "first token": `${(figures.first * 1000).toFixed(0)} ms`,
    "acceptance length": figures.acceptance_length.toFixed(2),
    "cost": figures.usd === null ? "no price is known" : `$${figures.usd.toFixed(6)}`,
    "energy here": figures.joules === null ? "not known" : `${figures.joules.toFixed(2)} J`,
  };
  $("figures").replaceChildren(...Object.entries(rows).flatMap(([name, value]) =>
    [el("dt", [name]), el("dd", [String(value)])]));
  const by = { ...figures.accepted_by };
  by.target = figures.tokens - Object.values(by).reduce((sum, count) => sum + count, 0);
  $("legend").replaceChildren(...Object.entries(by).map(([name, count]) =>
    el("li", [`${NAMES[name]}: ${count}`], { class: `by-${name}` })));
  showWhere(figures);
}

// The draft works while the target does: of its time, what was not hidden is shown.
function showWhere({ seconds, where }) {
  const target = Math.min(where.target, seconds), queue = Math.min(where.queue, seconds - target);
  const wire = Math.max(seconds - target - queue, 0), draft = Math.min(where.draft, seconds);
  const parts = { target, queue, wire };
  const bar = Object.entries(parts).map(([name, value]) => {
    const part = el("span", [], { class: `part-${name}` });
    part.style.width = `${(100 * value) / Math.max(seconds, 1e-9)}%`;
    return part;
  });
  const mine = el("span", [], { class: "part-draft" });
  mine.style.width = `${(100 * draft) / Math.max(seconds, 1e-9)}%`;
  const words = Object.entries({ ...parts, draft }).map(([name, value]) =>
    `${PARTS[name]} ${((100 * value) / Math.max(seconds, 1e-9)).toFixed(0)} %`).join(", ");
  $("where").replaceChildren(el("div", bar, { class: "bar" }), el("div", [mine], { class: "bar" }),
    el("p", [words], { class: "note" }));
  $("where").setAttribute("aria-label", words);
}

function point(figures) {
  if (!figures.tokens) return;
  const priced = figures.usd !== null;
  const cost = priced ? (figures.usd / figures.tokens) * 1e6 : 1 / Math.max(figures.acceptance_length, 1e-9);
  curve.add({ cs: Number($("cs").value), speed: figures.speed, cost, priced });
}

function download() {
  const link = el("a", [], { download: "conversation.json" });
  link.href = URL.createObjectURL(new Blob([conversations.exported()], { type: "application/json" }));
  link.click();
  URL.revokeObjectURL(link.href);
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => { conversations.begin(); drawAll(); $("message").focus(); });
$("export").addEventListener("click", download);
$("import").addEventListener("change", async (event) => {
  try { conversations.imported(await event.target.files[0].text()); drawAll(); } catch (error) { fail(error); }
  event.target.value = "";
});
$("toggle-live").addEventListener("click", () => {
  const hidden = document.querySelector("main").classList.toggle("no-live");
  $("toggle-live").setAttribute("aria-expanded", String(!hidden));
});
$("cs").addEventListener("input", async () => {
  $("cs-value").textContent = $("cs").value;
  try { await call("page/steer", { cs: Number($("cs").value) }); } catch (error) { fail(error); }
});
if (window.innerWidth < 1000) $("toggle-live").click(); // on a small screen the text comes first
drawAll();
servers.refresh();
