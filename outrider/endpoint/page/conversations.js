// Conversations, each stored in this browser under its own key, so that two tabs lose nothing.
// Files have the format of `outrider chat`.

import { withFiles } from "./attachments.js";
import { drop } from "./branches.js";

const KEPT = "outrider.conversation.", LAST = "outrider.settings";
const FORMAT = "outrider-conversation-1", ROLES = ["system", "user", "assistant"];
const BIN_MS = 7 * 86_400_000;
const SETTINGS = {
  system: "", server: "", temperature: null, top_p: 1, max_tokens: 512, seed: null, stop: [],
};

export class Conversations {
  // changed(): another tab has changed a conversation; failed(error)
  constructor(changed, failed) {
    this.failed = failed;
    this.made = null; // the conversation for which a text is being made here: other tabs know less
    this.all = kept();
    this.current = this.listed("")[0] ?? this.begin();
    window.addEventListener("storage", ({ key }) => {
      if (key?.startsWith(KEPT)) changed(this.reread(key));
    });
  }

  // Opens an empty conversation: the one that is there, or a new one.
  begin() {
    this.current = this.all.find((one) => !one.messages.length && !one.draft && !one.deleted)
      ?? this.add([], { ...read(LAST, {}), system: "", seed: null });
    return this.current;
  }

  add(messages, settings) {
    const id = [...crypto.getRandomValues(new Uint32Array(3))].map((one) => one.toString(36)).join("");
    this.all.unshift({ id, messages, settings: { ...SETTINGS, ...settings }, changed: Date.now() });
    return this.all[0];
  }

  open(id) {
    this.current = this.all.find((one) => one.id === id) ?? this.current;
  }

  // Conversations that have these words, the latest first; one without messages only where it is open.
  listed(words) {
    const wanted = words.trim().toLowerCase();
    return this.all
      .filter((one) => !one.deleted && (one.messages.length || one.draft || one === this.current))
      .filter((one) => !wanted || title(one).toLowerCase().includes(wanted) || excerpt(one, wanted))
      .sort((one, other) => other.changed - one.changed);
  }

  get deleted() {
    return this.all.filter((one) => one.deleted);
  }

  remove(conversation) {
    conversation.deleted = Date.now();
    this.keep(conversation);
    if (this.current === conversation) this.current = this.listed("")[0] ?? this.begin();
  }

  restore(conversation) {
    delete conversation.deleted;
    this.current = conversation;
    this.keep(conversation);
  }

  set(settings) {
    Object.assign(this.current.settings, settings);
    localStorage.setItem(LAST, JSON.stringify(this.current.settings));
    this.keep();
  }

  // Appends a message of the user, or extends one that has no answer.
  say(content, files) {
    const { messages } = this.current, last = () => messages.at(-1);
    if (last()?.role === "assistant" && !last().content) drop(messages);
    if (last()?.role === "user") {
      last().content += `\n\n${content}`;
      if (files.length) last().files = [...(last().files ?? []), ...files];
    } else messages.push({ role: "user", content, ...(files.length && { files }) });
    this.current.draft = "";
    this.touch();
  }

  touch(conversation = this.current) {
    conversation.changed = Date.now();
    this.keep(conversation);
  }

  keep(conversation = this.current) {
    if (!conversation.messages.length && !conversation.draft) return;
    try {
      localStorage.setItem(KEPT + conversation.id, JSON.stringify(conversation));
    } catch {
      this.failed(new Error("the storage of this browser is full: export conversations and delete them"));
    }
  }

  // What another tab has kept. Returns the conversation that was there before.
  reread(key) {
    const found = read(key, null), id = key.slice(KEPT.length);
    const place = this.all.findIndex((one) => one.id === id), before = this.all[place];
    if (before && before === this.made) return before;
    if (valid(found)) this.all.splice(Math.max(place, 0), place < 0 ? 0 : 1, found);
    if (valid(found) && this.current === before) this.current = found;
    return before;
  }

  exported() {
    const { settings: { system }, messages } = this.current;
    const said = [...(system ? [{ role: "system", content: system }] : []), ...messages];
    const plain = said.map((message) => ({ role: message.role, content: withFiles(message) }));
    return JSON.stringify({ format: FORMAT, messages: plain }, null, 1);
  }

  imported(text) {
    let found;
    try { found = JSON.parse(text); } catch { throw new Error("this file is not JSON"); }
    if (found?.format !== FORMAT || !valid(found)) {
      throw new Error(`this file is not a conversation: the format ${FORMAT} is needed`);
    }
    const plain = found.messages.map(({ role, content }) => ({ role, content }));
    this.current = this.add(...withSystem(plain));
    this.keep();
  }
}

export function title(conversation) {
  const { content, files } = conversation.messages.find(({ role }) => role === "user") ?? {};
  return conversation.title || (content || files?.[0]?.name || conversation.draft || "").trim().split("\n")[0].slice(0, 60)
    || "New chat";
}

// The words around what was sought; empty where it is not in a message.
export function excerpt(conversation, wanted) {
  for (const { content } of wanted ? conversation.messages : []) {
    const place = content.toLowerCase().indexOf(wanted);
    if (place >= 0) return content.slice(Math.max(place - 20, 0), place + 60);
  }
  return "";
}

export function read(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

// The conversations of this browser. Deleted ones go after a week.
function kept() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(KEPT));
  const found = keys.map((key) => [key, read(key, null)]).filter(([, one]) => valid(one));
  for (const [key, one] of found) if (one.deleted < Date.now() - BIN_MS) localStorage.removeItem(key);
  return found.map(([, one]) => ({ ...one, settings: { ...SETTINGS, ...one.settings } }));
}

// Messages without the system's, and the settings that have it.
function withSystem(messages) {
  const system = messages.filter(({ role }) => role === "system").map(({ content }) => content);
  return [messages.filter(({ role }) => role !== "system"), { system: system.join("\n\n") }];
}

function valid(one) {
  return Array.isArray(one?.messages) && one.messages.every((message) =>
    ROLES.includes(message?.role) && typeof message.content === "string");
}
