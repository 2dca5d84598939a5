// Markdown, maths and code as elements. HTML in a text is shown as it is written, and all that the
// libraries make passes the sanitiser: so no text can become a script, a style or a request.

import { copyButton, el } from "./elements.js";
import DOMPurify from "./vendor/dompurify.js";
import hljs from "./vendor/highlight.js";
import katex from "./vendor/katex.js";
import { Marked } from "./vendor/marked.js";

const SAFE = {
  USE_PROFILES: { mathMl: true },
  ADD_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ADD_ATTR: ["align", "data-language", "href", "start", "title"],
  FORBID_ATTR: ["class", "id", "name", "style"],
  ALLOWED_URI_REGEXP: /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
  RETURN_DOM_FRAGMENT: true,
};
const WHOLE = /^(?:https?:\/\/|mailto:)/i; // other links would lead into this server, or hide their host
const COLOURS = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
const INLINE = /^(?:\$\$([^$]+)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d))/;
const BLOCK = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
const LONGEST_FORMULA = 2000; // longer ones take KaTeX seconds
const CODE_LINE = /^(\s{4}|\t|#|\/\/|[@{}()\]]|(def|class|import|from|return|if|for|while|else|elif|try|except|with|const|let|function|var|public|async|raise|print)\b)|[:;{}(,]$|^[\w.[\]]+(\(| = )/;
const PYTHON = /^\s*(?:async def|def|class|import|from|elif|@\w)\b/m;

const marked = new Marked({
  breaks: true,
  extensions: [maths("inline", INLINE, /\$|\\[([]/), maths("block", BLOCK, /(?<=\n)(?:\$\$|\\\[)/)],
  renderer: {
    heading({ tokens, depth }) {
      const level = Math.min(Math.max(depth + 2, 4), 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    html: ({ text }) => (/^<br\s*\/?>$/i.test(text) ? "<br>" : escape(text)),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "\u2611 " : "\u2610 "),
    code: ({ text, lang }) => codeBlock(text, lang?.split(/\s/)[0] ?? ""),
  },
});

// The blocks of a text, in order: the source of each tells whether it has changed.
export function blocksOf(text) {
  if (isCode(text)) {
    const lang = PYTHON.test(text) ? "python" : "";
    return [{ type: "code", raw: text, text: text.replace(/^\n+/, ""), lang }];
  }
  return marked.lexer(text).filter(({ type }) => type !== "space");
}

export function drawBlock(block) {
  const made = DOMPurify.sanitize(marked.parser([block]), SAFE);
  for (const link of made.querySelectorAll("a[href]")) {
    const href = link.getAttribute("href");
    if (!WHOLE.test(href)) link.removeAttribute("href");
    else Object.assign(link, { rel: "noopener noreferrer", target: "_blank", title: href });
  }
  for (const table of made.querySelectorAll("table")) {
    const scrolling = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" };
    table.replaceWith(el("div", [table.cloneNode(true)], scrolling));
  }
  for (const code of made.querySelectorAll("pre > code")) dress(code.parentNode, code);
  return el("div", [made], { class: "block" });
}

// A block of code: what language it is, a button that copies it, and colours.
function dress(pre, code) {
  const text = code.textContent, language = code.dataset.language;
  if (hljs.getLanguage(language)) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, COLOURS));
  }
  pre.tabIndex = 0; // it scrolls
  const head = el("div", [el("span", [language || "code"]), copyButton("Copy code", () => text)]);
  const figure = el("figure", [head], { class: "code" });
  pre.replaceWith(figure);
  figure.append(pre);
}

function codeBlock(text, language) {
  return `<pre><code data-language="${escape(language)}">${escape(text)}</code></pre>`;
}

// Whether a text without fences is code: base models go on with a program as they were asked to.
export function isCode(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (/^(```|~~~)/m.test(text) || lines.length < 2) return false;
  return lines.filter((line) => CODE_LINE.test(line)).length >= 0.7 * lines.length;
}

// start: what a formula may begin with in the middle of other text
function maths(level, pattern, start) {
  return {
    name: `${level}-maths`,
    level,
    start: (source) => source.match(start)?.index,
    tokenizer(source) {
      const [raw, ...found] = pattern.exec(source) ?? [];
      if (raw === undefined || raw.length > LONGEST_FORMULA) return undefined;
      const place = found.findIndex((one) => one !== undefined);
      return { type: `${level}-maths`, raw, tex: found[place].trim(), display: place < 2 };
    },
    renderer: ({ tex, display }) => formula(tex, display),
  };
}

function formula(tex, displayMode) {
  const made = katex.renderToString(tex, {
    displayMode, output: "mathml", throwOnError: false, strict: false, maxExpand: 200, maxSize: 20,
  });
  return made.replace(/<annotation[\s\S]*?<\/annotation>/g, ""); // the source: it would be read twice
}

function escape(text) {
  return text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
