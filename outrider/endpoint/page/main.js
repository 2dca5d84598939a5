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
let steered = ""; // the target whose knob is shown

// A text on its way: the message that it becomes, and the element that shows it.
class LiveText {
  constructor(place, message) {
    this.place = place;
    this.message = message;
    this.waiting = false;
  }

  // What stands there before it goes on
  cut({ text, tokens }) {
    const { runs, going } = this.message, by = runs.find(({ end }) => end >= text.length)?.by ?? "target";
    going.made.length = tokens;
    this.message.runs = runs.filter(({ end }) => end < text.length);
    this.message.content = "";
    this.push({ text, by });
  }

  push({ text, by }) {
    const { runs } = this.message, last = runs.at(-1), end = (this.message.content += text).length;
    if (last?.by === by) last.end = end;
    else runs.push({ end, by });
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.waiting = false;
    render(this.message.content, this.message.runs, this.place);
    follow();
  }
}

function showState(state) {
  const words = !state.running ? `no target: ${state.reason}`
    : state.trouble ? `${state.model} is away: ${state.trouble}`
      : `${state.model} at ${state.address}, drafted by ${state.draft ?? "nobody"}, on ${state.device}`;
  if ($("status").textContent !== words) $("status").textContent = words; // or it is read out again
  $("status").classList.toggle("away", !state.running || Boolean(state.trouble));
  $("knob").hidden = !state.running || state.unsteered !== "";
  $("cs-note").textContent = state.unsteered || (state.priced ? `prices: ${state.priced}` : "");
  const target = `${state.model} at ${state.address}`;
  if (!state.running || target === steered) return; // a user may be moving the knob
  steered = target;
  $("cs-value").textContent = $("cs").value = Math.round(state.weight * 100);
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
  const last = current?.messages.at(-1);
  if (!running && last?.going) $("messages").append(button("Go on", answer));
  if (!running && last?.role === "user") {
    $("messages").append(button("Ask again", answer), " ", button("Edit", takeBack));
  }
  follow(true);
}

function drawn(message) {
  const text = el("div", [], { class: "text" });
  if (message.role === "user") text.textContent = message.content;
  else render(message.content, message.runs ?? [], text);
  const who = { user: "You", system: "System", assistant: "Target" }[message.role];
  const words = message.note ?? (message.going && !running && "broken off");
  const note = words ? [el("p", [words], { class: "note" })] : [];
  return el("article", [el("h4", [who]), text, ...note], { class: `message ${message.role}` });
}

function follow(always = false) {
  const box = $("messages");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) {
    box.scrollTop = box.scrollHeight;
  }
}

function send() {
  const content = $("message").value;
  if (!content.trim() || running) return;
  if (!conversations.current) conversations.begin();
  const { messages } = conversations.current, last = messages.at(-1);
  if (last?.role === "user") last.content += `\n\n${content}`; // which nobody answered
  else messages.push({ role: "user", content });
  $("message").value = "";
  answer();
}

function takeBack() {
  $("message").value = conversations.current.messages.pop().content;
  conversations.keep();
  drawAll();
  $("message").focus();
}

// Answers the last message, or goes on with an answer that broke off.
async function answer() {
  if (running) return;
  const { messages } = conversations.current, begun = messages.at(-1).going?.model;
  if (begun && (servers.state?.model ?? begun) !== begun) {
    return fail(new Error(`${begun} began this text: only it can go on`));
  }
  const broken = messages.at(-1).going ? messages.pop() : null;
  $("error").hidden = true;
  begin(true);
  drawAll();
  const asked = messages.map(({ role, content }) => ({ role, content })), message = broken ?? empty();
  const both = !broken && $("beside").checked, alone = structuredClone(message);
  const places = both ? [pane("Outrider"), pane("target-only")] : [pane("")];
  $("messages").append(el("article", [el("h4", ["Target"]),
    el("div", places.map((place) => place.box), { class: both ? "pair" : "" }),
  ], { class: "message assistant" }));
  messages.push(message); // a page that is left keeps what came
  conversations.keep();
  const failures = await Promise.all(places.map((place, index) =>
    make(asked, place, index ? alone : message, index === 1)));
  if (!message.content && message.going) {
    messages.splice(messages.indexOf(message), 1);
    failures.filter(Boolean).forEach(fail);
  }
  begin(false);
  conversations.keep();
  if (!both || message.going) drawAll();
}

// An answer of which nothing has come; going: what is needed to go on with it
function empty() {
  const going = {
    model: servers.state?.model, max_tokens: Number($("tokens").value), made: [],
    temperature: Number($("temperature").value), seed: Math.floor(Math.random() * 2 ** 31),
  };
  return { role: "assistant", content: "", runs: [], going };
}

function pane(name) {
  const text = el("div", [], { class: "text" }), note = el("p", [], { class: "note" });
  const head = name ? [el("h4", [name])] : [];
  return { box: el("div", [...head, text, note]), text, note };
}

// Returns the error that broke the text off, where one did.
async function make(messages, place, message, alone) {
  const live = new LiveText(place.text, message), { model, ...asked } = message.going;
  let ended = null, failed = null;
  const on = {
    made: (sent) => live.cut(sent),
    piece: (piece) => live.push(piece),
    tokens: (sent) => { asked.made.push(...sent.ids); if (!alone) tree.committed(sent); },
    figures: (figures) => { place.note.textContent = brief(figures); if (!alone) show(figures); },
    end: (figures) => { ended = figures; },
    error: (error) => { failed = error; },
  };
  if (!alone) {
    tree.reset();
    on.nodes = (sent) => tree.sent(sent);
  }
  live.draw();
  try {
    await listen("page/texts", { messages, ...asked, target_only: alone }, on, running.signal);
    if (!ended) failed ??= new Error("the server ended it");
  } catch (error) {
    if (!running.signal.aborted) failed = error;
  }
  if (ended) {
    delete message.going;
    if (!alone) { show(ended); point(ended); }
  }
  live.draw();
  message.note = ended ? brief(ended) : failed ? `broken off: ${failed.message}` : "stopped";
  place.note.textContent = message.note;
  return failed;
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
window.addEventListener("pagehide", () => { if (running) conversations.keep(); });
drawAll();
servers.watch();
