// Calls to the server that this page came from.

let key = "";

export function useKey(given) {
  key = given.trim();
}

export async function call(path, body) {
  const response = await send(path, body);
  return response.json();
}

// The events of a text: hear(name, data) is called for each. Ends when the stream ends.
export async function listen(path, body, hear, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw signal.aborted ? error : new Error("the connection to the server of this page was lost");
    });
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => split(line)));
      if (fields.event) hear(fields.event, JSON.parse(fields.data));
    }
  }
}

function split(line) {
  const place = line.indexOf(": ");
  return place < 0 ? [line, ""] : [line.slice(0, place), line.slice(place + 2)];
}

async function send(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const given = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { headers, signal, ...given });
  } catch (error) {
    throw signal?.aborted ? error : new Error("the server of this page does not answer");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? `the server answered with ${response.status}`;
  throw Object.assign(new Error(message), { type: told?.error?.type });
}
