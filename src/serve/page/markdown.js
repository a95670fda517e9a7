// Markdown, the part that models write, as DOM nodes. Text becomes text nodes and nothing else, so
// whatever a model says cannot become markup.

export function render(text) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) at = block(lines, at, out);
  return out;
}

/** Appends the block that begins at line `at`; returns the line after it. */
function block(lines, at, out) {
  const line = lines[at];
  if (!line.trim()) return at + 1;
  const fence = line.match(/^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/);
  if (fence) return code(lines, at, fence, out);
  const heading = line.match(/^ {0,3}(#{1,6})\s+(.*?)\s*#*$/);
  if (heading) {
    out.append(inline(heading[2], element(`h${Math.min(heading[1].length, 4)}`)));
    return at + 1;
  }
  if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
    out.append(element("hr"));
    return at + 1;
  }
  if (/^ {0,3}>/.test(line)) {
    const [end, inner] = take(lines, at, (l) => /^ {0,3}>/.test(l));
    const quote = element("blockquote");
    quote.append(render(inner.map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n")));
    out.append(quote);
    return end;
  }
  if (item(line)) return list(lines, at, out);
  if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) {
    return table(lines, at, out);
  }
  const [end, inner] = take(lines, at, (l, i) => l.trim() && (i === at || !begins(l)));
  out.append(inline(inner.join("\n"), element("p")));
  return end;
}

/** Whether a line ends the paragraph before it. */
const begins = (line) => /^ {0,3}(`{3,}|~{3,}|#{1,6}\s|>|[-*_]( *[-*_]){2,} *$)/.test(line) || item(line);

const item = (line) => line.match(/^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/);

function code(lines, at, [, fence, language], out) {
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(fence) && !lines[end].trim().slice(fence.length).replaceAll(fence[0], ""))) end += 1;
  const body = element("code", lines.slice(at + 1, end).join("\n"));
  const box = element("div"), top = element("div"), pre = element("pre"), copy = element("button", "Copy");
  box.className = "code";
  top.className = "top";
  copy.className = "quiet";
  copy.type = "button";
  copy.dataset.copy = "code";
  top.append(element("span", language.trim() || "text"), copy);
  pre.append(body);
  box.append(top, pre);
  out.append(box);
  return end + 1;
}

function list(lines, at, out) {
  const first = item(lines[at]);
  const ordered = /\d/.test(first[2]);
  const list = element(ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2]) !== 1) list.start = parseInt(first[2]);
  const indent = first[1].length;
  while (at < lines.length) {
    const found = item(lines[at]);
    if (!found || found[1].length < indent || /\d/.test(found[2]) !== ordered) break;
    const inner = [found[4]];
    const inside = found[1].length + 2;
    at += 1;
    while (at < lines.length) {
      const line = lines[at];
      const deeper = line.search(/\S/) >= inside;
      const lazy = line.trim() && !begins(line) && lines[at - 1].trim();
      const blank = !line.trim() && (lines[at + 1] ?? "").search(/\S/) >= inside;
      if (!deeper && !lazy && !blank) break;
      inner.push(deeper ? line.slice(Math.min(line.search(/\S/), inside + (ordered ? 1 : 0))) : line.trimStart());
      at += 1;
    }
    const entry = element("li");
    const content = render(inner.join("\n"));
    const only = content.firstElementChild;
    // A short entry is a line, not a paragraph.
    if (only?.tagName === "P") only.replaceWith(...only.childNodes);
    entry.append(content);
    list.append(entry);
    while (at + 1 < lines.length && !lines[at].trim() && item(lines[at + 1])?.[1].length === indent) at += 1;
  }
  out.append(list);
  return at;
}

function table(lines, at, out) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [end, rows] = take(lines, at, (l) => l.includes("|"));
  const body = element("table");
  rows.forEach((line, i) => {
    if (i === 1) return;
    const row = element("tr");
    for (const cell of cells(line)) row.append(inline(cell, element(i ? "td" : "th")));
    body.append(row);
  });
  const scroll = element("div");
  scroll.className = "table";
  scroll.append(body);
  out.append(scroll);
  return end;
}

/** The lines from `at` on as long as `is` says so, and the line after them. */
function take(lines, at, is) {
  let end = at;
  while (end < lines.length && is(lines[end], end)) end += 1;
  return [end, lines.slice(at, end)];
}

const SPAN = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\*\*(?=\S)([^]*?\S)\*\*|\*(?=[^\s*])([^*]*?[^\s*])\*|~~(?=\S)([^]*?\S)~~|\[([^\]\n]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])|\\([\\`*_~[\](){}#+.!|>-])/;

/** Appends the text with its emphasis, code and links to `parent`. */
function inline(text, parent) {
  for (let rest = text; rest; ) {
    const found = rest.match(SPAN);
    if (!found) {
      parent.append(rest);
      break;
    }
    parent.append(rest.slice(0, found.index));
    rest = rest.slice(found.index + found[0].length);
    const [all, , span, bold, italic, struck, label, target, url, escaped] = found;
    if (span !== undefined) parent.append(element("code", span.trim() || span));
    else if (bold !== undefined) parent.append(inline(bold, element("strong")));
    else if (italic !== undefined) parent.append(inline(italic, element("em")));
    else if (struck !== undefined) parent.append(inline(struck, element("del")));
    else if (url !== undefined) parent.append(link(url, url));
    else if (escaped !== undefined) parent.append(escaped);
    else parent.append(/^(https?:|mailto:)/i.test(target) ? link(target, label) : all);
  }
  return parent;
}

function link(target, label) {
  const anchor = element("a", label);
  anchor.href = target;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  return anchor;
}

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}
