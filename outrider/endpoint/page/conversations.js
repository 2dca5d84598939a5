// Conversations, kept in this browser. Files have the format of `outrider chat`.

const KEPT = "outrider.conversations", FORMAT = "outrider-conversation-1";
const ROLES = ["system", "user", "assistant"];

export class Conversations {
  constructor() {
    this.all = read(KEPT, []).filter(valid);
    this.current = this.all[0] ?? null;
  }

  begin() {
    this.current = { id: crypto.randomUUID(), messages: [] };
    this.all = [this.current, ...this.all];
    this.keep();
  }

  open(id) {
    this.current = this.all.find((one) => one.id === id) ?? this.current;
  }

  remove(id) {
    this.all = this.all.filter((one) => one.id !== id);
    if (this.current?.id === id) this.current = this.all[0] ?? null;
    this.keep();
  }

  keep() {
    localStorage.setItem(KEPT, JSON.stringify(this.all));
  }

  exported() {
    const messages = (this.current?.messages ?? []).map(({ role, content }) => ({ role, content }));
    return JSON.stringify({ format: FORMAT, messages }, null, 1);
  }

  imported(text) {
    let found;
    try { found = JSON.parse(text); } catch { throw new Error("this file is not JSON"); }
    if (found?.format !== FORMAT || !valid(found)) {
      throw new Error(`this file is no conversation: the format ${FORMAT} is needed`);
    }
    const messages = found.messages.map(({ role, content }) => ({ role, content }));
    this.current = { id: crypto.randomUUID(), messages };
    this.all = [this.current, ...this.all];
    this.keep();
  }
}

export function title(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  return first?.content.trim().split("\n")[0].slice(0, 60) || "New conversation";
}

export function read(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

function valid(one) {
  return Array.isArray(one?.messages) && one.messages.every((message) =>
    ROLES.includes(message?.role) && typeof message.content === "string");
}
