// The chat page: puts its parts together.

import { Answers } from "./answers.js";
import { Attachments } from "./attachments.js";
import { change, fork } from "./branches.js";
import { Conversations } from "./conversations.js";
import { $, button, keepFocus, save } from "./elements.js";
import { Follow } from "./follow.js";
import { Live } from "./live.js";
import { MessageView } from "./message.js";
import { Servers, drafted } from "./servers.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";

const COLOURS = "outrider.colours", narrow = matchMedia("(max-width: 1099px)");

const conversations = new Conversations(changedElsewhere, fail);
const servers = new Servers(showState, fail);
const panel = new Live(fail);
const attachments = new Attachments(fail);
const sidebar = new Sidebar(conversations, open);
const settings = new Settings(conversations, servers);
const follow = new Follow($("messages"), $("log"), $("jump"));
const answers = new Answers(conversations, servers, panel, {
  begun: () => busy(true), moved: (message) => views.get(message)?.later(), ended, failed: fail,
});
const views = new WeakMap(); // message -> MessageView
let away = true; // whether the target has not answered since unfinished texts were looked for

function showState(state) {
  const gone = !state.running || Boolean(state.trouble);
  const words = !state.running ? `no target: ${state.reason}`
    : state.trouble ? `${state.model} is away. Text continues by itself when it is back. (${state.trouble})`
      : `${state.model} at ${state.address}, ${drafted(state)}, on ${state.device}`;
  if ($("status").textContent !== words) $("status").textContent = words; // or it is read out again
  $("status").title = words;
  $("status").classList.toggle("away", gone);
  panel.state(state);
  suggest(state);
  const back = away && !gone;
  if (back || gone) away = gone;
  if (back) answers.resume();
}

// What to try first with the model in use.
function suggest({ model, suggestions = [], temperature }) {
  if (!model || $("suggestions").dataset.model === model) return;
  $("suggestions").dataset.model = $("asked-model").textContent = model;
  $("suggestions").replaceChildren(...suggestions.map((text) =>
    button(text.split("\n")[0], () => { $("message").value = text; send(); }, text)));
  $("temperature").placeholder = temperature;
  settings.draw();
}

function fail(error) {
  $("error").textContent = error.message;
  $("error").hidden = false;
}

const acts = {
  edit(message, content) { branch(message, { role: "user", content, files: message.files }); },
  regenerate(message) { branch(message, answers.empty(conversations.current.settings)); },
  change(message, step) {
    const { messages } = conversations.current, { siblings } = message, index = messages.indexOf(message);
    change(messages, index, siblings.indexOf(null) + step);
    conversations.keep();
    drawMessages();
    const switches = views.get(messages[index]).head.querySelectorAll("button:enabled");
    switches[step > 0 ? switches.length - 1 : 0].focus();
  },
  goOn() { answer(); },
};

function branch(message, other) {
  const { messages } = conversations.current;
  fork(messages, messages.indexOf(message), other);
  answer();
}

function answer() {
  $("error").hidden = true;
  follow.held = true;
  answers.answer(conversations.current, $("beside").checked);
  drawMessages();
}

function send() {
  const content = $("message").value;
  if (!(content.trim() || attachments.files.length) || answers.running) return;
  conversations.say(content, attachments.take());
  $("message").value = "";
  answer();
}

function drawMessages() {
  const { messages } = conversations.current;
  keepFocus(() => $("log").replaceChildren(...messages.map((message) => {
    if (!views.has(message)) views.set(message, new MessageView(message, acts));
    const live = answers.running?.message === message, last = message === messages.at(-1);
    views.get(message).draw({ busy: Boolean(answers.running), live, last, colours: colours() });
    return views.get(message).element;
  })));
  $("welcome").hidden = messages.length > 0;
  if (follow.held) follow.hold();
}

// Shows the conversation that is open now.
function open() {
  $("error").hidden = true;
  $("message").value = conversations.current.draft ?? "";
  follow.held = true;
  sidebar.draw();
  settings.draw();
  drawMessages();
  if (narrow.matches) show("list", false);
}

function busy(yes) {
  $("stop").disabled = !yes;
  $("send").disabled = yes;
  $("messages").setAttribute("aria-busy", String(yes));
  sidebar.draw();
  drawMessages();
}

function ended() {
  const focused = document.activeElement;
  busy(false);
  if (focused === $("stop") || focused === document.body) $("message").focus();
}

function changedElsewhere(before) {
  if (before === conversations.current || before?.id === conversations.current.id) drawMessages();
  sidebar.draw();
}

function colours() {
  return $("toggle-colours").getAttribute("aria-pressed") === "true";
}

function show(name, shown) {
  document.querySelector("main").classList.toggle(`no-${name}`, !shown);
  $(`toggle-${name}`).setAttribute("aria-expanded", String(shown));
}

// On a small screen there is room for one of the three, and the text comes first.
function textFirst() {
  show("list", !narrow.matches);
  show("live", !narrow.matches);
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("input", () => {
  conversations.current.draft = $("message").value;
  conversations.keep();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  if (event.key === "ArrowUp" && !$("message").value && !answers.running) {
    const last = conversations.current.messages.findLast(({ role }) => role === "user");
    if (last) { event.preventDefault(); views.get(last).edit(); }
  }
});
document.addEventListener("keydown", (event) => {
  const elsewhere = event.target.matches?.("input") || document.querySelector("dialog[open]");
  if (event.key === "Escape" && !elsewhere) answers.stop();
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    show("list", true);
    $("search").focus();
  }
});
$("stop").addEventListener("click", () => answers.stop());
$("export").addEventListener("click", () => save("conversation.json", conversations.exported()));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async (event) => {
  try { conversations.imported(await event.target.files[0].text()); open(); } catch (error) { fail(error); }
  event.target.value = "";
});
for (const name of ["list", "live"]) {
  $(`toggle-${name}`).addEventListener("click", () => {
    const shown = $(`toggle-${name}`).getAttribute("aria-expanded") !== "true";
    if (shown && narrow.matches) show(name === "list" ? "live" : "list", false);
    show(name, shown);
  });
}
$("toggle-colours").addEventListener("click", () => {
  $("toggle-colours").setAttribute("aria-pressed", String(!colours()));
  localStorage.setItem(COLOURS, String(colours()));
  drawMessages();
});
window.addEventListener("pagehide", () => { if (answers.running) conversations.keep(answers.running.conversation); });

$("toggle-colours").setAttribute("aria-pressed", String(localStorage.getItem(COLOURS) === "true"));
if (!matchMedia("(pointer: coarse)").matches) $("message").placeholder += " (Enter sends, Shift-Enter starts a new line)";
narrow.addEventListener("change", textFirst);
document.querySelector(".skip").addEventListener("click", () => { if (narrow.matches) textFirst(); });
textFirst();
open();
servers.watch();
