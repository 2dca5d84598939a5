// Generates answers: one at a time in a page, each in one tab only. Text is stored every second.

import { withFiles } from "./attachments.js";
import { cut, push } from "./runs.js";
import { listen } from "./server.js";

const KEEP_MS = 1000;

export class Answers {
  // told: {begun(), moved(message), ended(), failed(error)}
  constructor(conversations, servers, panel, told) {
    Object.assign(this, { conversations, servers, panel, told });
    this.running = null; // {conversation, message, stop: AbortController}
  }

  // Answers the last message, or continues an answer that was interrupted.
  async answer(conversation, beside = false) {
    if (this.running) return;
    const { messages, settings } = conversation, stop = new AbortController();
    this.running = { conversation, stop };
    try {
      if (settings.server) await this.servers.use(settings.server);
      const message = unfinished(conversation) ?? this.empty(settings);
      if (!messages.includes(message)) messages.push(message);
      this.check(message.going);
      this.running.message = message;
      this.told.begun(); // before the lock is granted: the page is busy from now on
      await exclusively(conversation.id, () => this.make(this.running, beside && !message.content));
    } catch (error) {
      this.told.failed(error);
    }
    this.running = null;
    this.told.ended();
  }

  // An answer without text yet. going: what is needed to continue it
  empty({ temperature, top_p, max_tokens, seed, stop, system }) {
    const given = seed ?? Math.floor(Math.random() * 2 ** 31), model = this.servers.state?.model;
    const stops = stop.length ? stop : null; // null: the model's own
    const going = { model, system, temperature, top_p, max_tokens, stop: stops, seed: given, made: [] };
    return { role: "assistant", content: "", model, runs: [], going };
  }

  check({ model }) {
    if (model && (this.servers.state?.model ?? model) !== model) {
      throw new Error(`${model} began this text, and only it can continue it`);
    }
  }

  // Continues texts that no user has stopped, if their model is in use.
  async resume() {
    for (const conversation of this.conversations.listed("")) {
      const { going } = unfinished(conversation) ?? {}, { model } = this.servers.state ?? {};
      if (going && !going.halted && (!going.model || going.model === model)) await this.answer(conversation);
    }
  }

  stop() {
    this.running?.stop.abort();
  }

  async make({ conversation, message, stop }, beside) {
    const { going } = message, { messages } = conversation;
    if (going.halted === "length") going.max_tokens = going.made.length + conversation.settings.max_tokens;
    delete going.halted;
    delete message.note;
    const said = messages.slice(0, messages.indexOf(message));
    if (going.system) said.unshift({ role: "system", content: going.system });
    const asked = said.map((message) => ({ role: message.role, content: withFiles(message) }));
    const alone = { content: "", runs: [], going: structuredClone(going) };
    if (beside) message.beside = alone;
    else if (!message.beside?.content) delete message.beside; // which the page was left before
    this.told.moved(message);
    this.conversations.made = conversation;
    this.conversations.touch(conversation);
    const keeping = setInterval(() => this.conversations.keep(conversation), KEEP_MS);
    const failed = await this.text(asked, message, stop.signal);
    // One after the other, or they share the target
    if (beside && !failed && !stop.signal.aborted) await this.text(asked, alone, stop.signal, message);
    clearInterval(keeping);
    this.conversations.made = null;
    delete alone.going;
    if (beside && !alone.content) delete message.beside;
    this.conversations.touch(conversation);
    if (failed && !message.content) throw failed;
  }

  // Generates a text. Returns the error that interrupted it, if any.
  // shown: the message beside which a text is generated without a draft
  async text(messages, message, signal, shown = null) {
    const { going } = message, { model, system, ...asked } = going;
    let ended = null, failed = null, before = 0;
    const on = {
      made: (sent) => { cut(message, sent); before = sent.tokens; },
      piece: (piece) => push(message, piece),
      tokens: ({ ids }) => { going.made.push(...ids); },
      figures: (figures) => { message.note = brief(figures, before); },
      end: (figures) => { ended = figures; },
      error: (error) => { failed = error; },
    };
    const hear = (name, data) => {
      on[name]?.(data);
      this.panel.event(name, data);
      this.told.moved(shown ?? message);
    };
    this.panel.begin(shown ? "target-only" : "Outrider", messages.at(-1)?.content ?? "");
    try {
      await listen("page/texts", { messages, ...asked, draft: shown ? "none" : null }, hear, signal);
      if (!ended) failed ??= new Error("the server of this page closed the connection");
    } catch (error) {
      if (!signal.aborted) failed = error;
    }
    message.note = ended ? brief(ended, before) : failed ? `interrupted: ${failed.message}` : "stopped";
    if (!ended && !failed) going.halted = "stopped";
    if (failed?.type === "invalid_request_error") going.halted = "refused"; // as it would be again
    if (ended?.reason === "length") going.halted = "length";
    else if (ended) delete message.going;
    this.panel.end(ended);
    return failed;
  }
}

// The answer at a conversation's end that can be continued, if there is one.
export function unfinished({ messages }) {
  return messages.at(-1)?.going ? messages.at(-1) : null;
}

// One tab at a time does this. Browsers have no locks for pages without TLS from other machines.
async function exclusively(name, work) {
  if (!navigator.locks) return work();
  const asked = { ifAvailable: true };
  return navigator.locks.request(`outrider.${name}`, asked, (lock) => lock && work());
}

function brief(figures, before) {
  const cost = figures.usd === null ? "" : `, $${figures.usd.toFixed(6)}`;
  return `${before + figures.tokens} tokens, ${figures.speed.toFixed(1)} tokens/s, `
    + `${figures.acceptance_length.toFixed(2)} tokens per forward pass${cost}`;
}
