// Recordings of texts: the events of each with their times. `outrider demo --real` replays one.

export const FORMAT = "outrider-recording", VERSION = 1;
export const MOST_BYTES = 32 * 2 ** 20, MOST_EVENTS = 20000;
const NAMES = ["target", "model", "copy", "host", "device"];
const list = Array.isArray, number = Number.isFinite, text = (value) => typeof value === "string";
const by = (value) => NAMES.includes(value);
const SHAPES = {
  made: (data) => text(data.text),
  piece: (data) => text(data.text) && by(data.by),
  nodes: (data) => by(data.by) && number(data.base) && number(data.more) && list(data.nodes)
    && data.nodes.every((node) => list(node) && number(node[0]) && number(node[1]) && text(node[2])
      && node[3] >= 0 && node[3] <= 1),
  tokens: (data) => [data.ids, data.texts, data.by].every(list) && data.texts.every(text)
    && data.by.every(by) && data.ids.length === data.texts.length && data.ids.length === data.by.length
    && number(data.position) && number(data.known) && number(data.model_seconds)
    && list(data.bytes) && data.bytes.every(number),
  figures: (data) => number(data.draft_calls) && number(data.where?.draft),
};

// The events of one text.
export class Track {
  constructor(name) {
    Object.assign(this, { name, cut: false, events: [], end: null });
  }

  add(name, data) {
    if (!SHAPES[name]) return;
    if (this.events.length < MOST_EVENTS) this.events.push([name, data]);
    else this.cut = true;
  }
}

export function written({ model, draft, device }, prompt, tracks) {
  return JSON.stringify({ format: FORMAT, version: VERSION, model, draft, device, prompt, tracks });
}

// Raises an error that says what was got, and what is needed.
export function read(file) {
  let found;
  try { found = JSON.parse(file); } catch { refuse("it is not JSON"); }
  if (found?.format !== FORMAT) refuse(`its format is ${JSON.stringify(found?.format ?? null)}`);
  if (found.version !== VERSION) refuse(`its version is ${JSON.stringify(found.version ?? null)}`);
  if (!text(found.prompt)) refuse("it has no prompt");
  if (!list(found.tracks) || ![1, 2].includes(found.tracks.length)) refuse("it has not one or two tracks");
  found.tracks.forEach((track, index) => {
    if (!text(track?.name) || !list(track.events) || track.events.length > MOST_EVENTS) {
      refuse(`track ${index + 1} has no name, or not up to ${MOST_EVENTS} events`);
    }
    const bad = track.events.findIndex((event) => !list(event) || !(event[1]?.at >= 0)
      || !Object.hasOwn(SHAPES, event[0]) || !SHAPES[event[0]](event[1]));
    if (bad >= 0) refuse(`event ${bad + 1} of track ${index + 1} is ${JSON.stringify(track.events[bad]).slice(0, 60)}`);
    track.events.sort(([, one], [, other]) => one.at - other.at);
  });
  return found;
}

function refuse(got) {
  throw new Error(`this file is no recording: ${got}; ${FORMAT}, version ${VERSION}, as `
    + '"Save recording" writes it, is needed');
}
