// The chat page: messages, the text that is being made, and what can be watched of it.

import { Conversations, title } from "./conversations.js";
import { $, button, el } from "./elements.js";
import { Live } from "./live.js";
import { render } from "./markdown.js";
import { listen } from "./server.js";
import { Servers } from "./servers.js";

const conversations = new Conversations();
const servers = new Servers(showState, fail);
const panel = new Live(fail);
let running = null; // the AbortController of the texts that are being made

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
  panel.state(state);
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
  const failures = [];
  for (const [index, place] of places.entries()) { // one after the other, or they share the target
    if (running.signal.aborted) break;
    failures.push(await make(asked, place, index ? alone : message, index === 1));
  }
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
    tokens: (sent) => { asked.made.push(...sent.ids); },
    figures: (figures) => { place.note.textContent = brief(figures); },
    end: (figures) => { ended = figures; },
    error: (error) => { failed = error; },
  };
  const hear = (name, data) => {
    on[name]?.(data);
    panel.event(name, data);
  };
  panel.begin(alone ? "target-only" : "Outrider", messages.at(-1)?.content ?? "");
  live.draw();
  try {
    await listen("page/texts", { messages, ...asked, target_only: alone }, hear, running.signal);
    if (!ended) failed ??= new Error("the server ended it");
  } catch (error) {
    if (!running.signal.aborted) failed = error;
  }
  panel.end(ended);
  if (ended) delete message.going;
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
if (window.innerWidth < 1000) $("toggle-live").click(); // on a small screen the text comes first
window.addEventListener("pagehide", () => { if (running) conversations.keep(); });
drawAll();
servers.watch();
