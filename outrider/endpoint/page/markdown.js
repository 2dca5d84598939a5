// Renders Markdown into elements, with a span for each run of text by who named its tokens.
// Text only ever becomes text nodes: nothing in it is read as HTML. Links lead to http and https.

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\(([^)\s]+)\)/g;

// text: the whole text; runs: [{end, by}] by ascending end; the last end is the text's length
export function render(text, runs, into) {
  const emit = emitter(text, runs);
  const made = document.createDocumentFragment();
  let place = 0, paragraph = null, list = null, code = null;
  const end = () => { paragraph = null; list = null; };
  for (const line of text.split("\n")) {
    const from = place, to = place + line.length;
    place = to + 1;
    const fence = /^\s*(```|~~~|<tool_call>|<\/tool_call>)/.exec(line)?.[1];
    if (code) {
      if (fence) { code = null; continue; }
      emit(code, from, Math.min(place, text.length));
      continue;
    }
    if (fence) {
      end();
      code = add(add(made, "pre"), "code");
      if (fence[0] === "<") code.parentNode.className = "call";
      continue;
    }
    const heading = /^(#{1,6})\s+/.exec(line), item = /^\s*([-*+]|\d{1,9}[.)])\s+/.exec(line);
    const quote = /^>\s?/.exec(line);
    if (!line.trim()) end();
    else if (heading) {
      end();
      inline(add(made, `h${Math.min(heading[1].length + 2, 6)}`), from + heading[0].length, to);
    } else if (item) {
      const kind = /\d/.test(item[1]) ? "ol" : "ul";
      if (!list || list.localName !== kind) { end(); list = add(made, kind); }
      inline(add(list, "li"), from + item[0].length, to);
      paragraph = null;
    } else if (quote) {
      end();
      inline(add(made, "blockquote"), from + quote[0].length, to);
    } else {
      if (paragraph) emit(paragraph, from - 1, from);
      else { list = null; paragraph = add(made, "p"); }
      inline(paragraph, from, to);
    }
  }
  into.replaceChildren(made);

  function inline(parent, from, to) {
    let at = from;
    const part = text.slice(from, to);
    for (const found of part.matchAll(INLINE)) {
      const start = from + found.index, stop = start + found[0].length;
      emit(parent, at, start);
      at = stop;
      const [, ticks, , bold, italic, label, address] = found;
      if (ticks) emit(add(parent, "code"), start + ticks.length, stop - ticks.length);
      else if (bold) emit(add(parent, "strong"), start + 2, stop - 2);
      else if (italic) emit(add(parent, "em"), start + 1, stop - 1);
      else {
        const link = anchor(address);
        if (!link) { emit(parent, start, stop); continue; }
        parent.append(link);
        emit(link, start + 1, start + 1 + label.length);
      }
    }
    emit(parent, at, to);
  }
}

function anchor(address) {
  let url;
  try { url = new URL(address); } catch { return null; }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const link = document.createElement("a");
  link.href = url.href;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return link;
}

function add(parent, kind) {
  return parent.appendChild(document.createElement(kind));
}

function emitter(text, runs) {
  return (parent, from, to) => {
    let at = from;
    for (let index = first(runs, from); at < to; index += 1) {
      const run = runs[index] ?? { end: to, by: "target" };
      const stop = Math.min(run.end, to);
      const span = add(parent, "span");
      span.className = `by-${run.by}`;
      span.textContent = text.slice(at, stop);
      at = stop;
    }
  };
}

// The first run that ends behind a place.
function first(runs, place) {
  let low = 0, high = runs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end <= place) low = middle + 1; else high = middle;
  }
  return low;
}
