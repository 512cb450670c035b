// Elements, number formats, tables. Text from runs and corpora enters here, as text nodes.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
// A name from outside, isolated so that right-to-left text does not reorder what follows. It may
// break after a separator, and after each letter of a word too long for half a phone's line.
const BREAKS = /(?<=\w[/_=:])(?=\w\w)|(?<=[^\s/_=:-]{28})(?=\S)/;
const named = (text) =>
  el("bdi", {}, String(text).split(BREAKS).flatMap((part, k) => (k ? [el("wbr"), part] : part)));
const soft = (text) => el("p", { class: "soft" }, named(text));

function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return value.toFixed(
    size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? Math.min(digits, 2) : digits,
  );
}

// Differences are listed below each other, so small ones have the same digits.
function signed(value, digits = 4) {
  const isSmall = value !== 0 && Math.abs(value) < 1e-4;
  return (value > 0 ? "+" : "") + (isSmall ? value.toFixed(digits) : number(value, digits));
}

const interval = (ends, write) => (ends ? `[${write(ends.low)}, ${write(ends.high)}]` : "");

function choice(label, id, options, chosen, changed) {
  const items = options.map(([value, text]) =>
    el("option", { value, selected: value === chosen }, text),
  );
  const select = el("select", { id, change: (event) => changed(event.target.value) }, items);
  return el("label", { for: id }, label, select);
}

// A table entry: text, a number, nothing, or a cell, whose value may be an estimate.
function entry(cell, tag, look) {
  if (typeof cell === "number") return el(tag, look, number(cell));
  if (cell === null || typeof cell === "string") return el(tag, look, cell && named(cell));
  const { value, interval: ends } = cell.value instanceof Object ? cell.value : cell;
  const write = (figure) =>
    cell.write === "fixed" ? (figure?.toFixed(cell.digits) ?? "") : number(figure, cell.digits);
  const below = interval(ends, write);
  return el(tag, look, write(value), below ? el("small", {}, below) : null);
}

function table({ name, heads, rows, left = [], summaries = 0, tall }) {
  const looks = heads.map((head) => ({ class: left.includes(head) ? "left" : null }));
  const line = (row, n) => {
    const isSummary = n >= rows.length - summaries;
    const cell = (value, k) => entry(value, k ? "td" : "th", k ? looks[k] : { scope: "row" });
    return el("tr", { class: isSummary ? "summary" : null }, row.map(cell));
  };
  const head = el("tr", {}, heads.map((text, k) => entry(text, "th", { ...looks[k], scope: "col" })));
  const node = el(
    "div",
    { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": name },
    el("table", {}, el("thead", {}, head), el("tbody", {}, rows.map(line))),
  );
  cutTables.observe(node);
  return node;
}

// Says below a table that it can be scrolled, and in which directions.
const cutTables = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const more = target.scrollWidth > target.clientWidth + 1 ? "→" : "";
    const below = target.scrollHeight > target.clientHeight + 1 ? "↓" : "";
    target.dataset.more = more + below;
    target.classList.toggle("cut", Boolean(more + below));
  }
});

// The numbers behind a chart, as a table that is made when it is opened.
function numbers(name, heads, rows, label = "Numbers") {
  const holder = el("div", {});
  const opened = (event) => {
    if (event.target.open && !holder.firstChild)
      holder.append(table({ name, heads, rows: rows(), tall: true }));
  };
  const summary = el("summary", {}, label, el("span", { class: "offscreen" }, ` of ${name}`));
  return el("details", { toggle: opened, id: uniqueId(`numbers-${name}`) }, summary, holder);
}

const usedIds = new Map(); // charts may share a title

function uniqueId(text) {
  const name = text.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();
  usedIds.set(name, (usedIds.get(name) || 0) + 1);
  return `${name}-${usedIds.get(name)}`;
}

const SHAPES = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
  "M-3.6,-3.6h7.2v7.2h-7.2Z",
  "M0,-4.8L4.4,3.4H-4.4Z",
  "M0,-5L5,0L0,5L-5,0Z",
  "M0,4.8L4.4,-3.4H-4.4Z",
  "M-1.5,-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9Z",
  "M0,-1.9L2.6,-4.5L4.5,-2.6L1.9,0L4.5,2.6L2.6,4.5L0,1.9L-2.6,4.5L-4.5,2.6L-1.9,0L-4.5,-2.6L-2.6,-4.5Z",
];
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
// Eight colours, then the same in paler tones.
const colour = (index) => `c${index % 8} t${Math.min(Math.floor(index / 8), 2)}`;
const shape = (index) => SHAPES[index % SHAPES.length];
// Lines after the eighth colour are dashed, and so are further seeds of a method.
const dashOf = (one) =>
  DASHES[(Math.floor(one.index / 8) + (one.dash || 0)) % DASHES.length] || null;
const marker = (index, transform) => svg("path", { class: "dot", d: shape(index), transform });
// The sign of a series in a legend.
const sign = (index, ...parts) =>
  svg("svg", { class: colour(index), viewBox: "0 0 24 14", "aria-hidden": "true" }, parts);

function legend(names) {
  const key = (name, index) => {
    const mark = marker(index, "translate(12,7) scale(1.25)");
    return el("span", { class: "key" }, sign(index, mark), named(name));
  };
  return el("div", { class: "legend" }, names.map(key));
}
