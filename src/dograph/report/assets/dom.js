// Elements. Whatever comes from a run or a corpus enters the page here, as text and never as markup.

const SVG_NAMES = "http://www.w3.org/2000/svg";

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

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NAMES, tag), attributes, children);
}

// A name from outside: in a direction of its own, so that it cannot turn round what follows it.
function named(text) {
  return el("bdi", {}, text);
}

const isKnown = (value) => value !== null && value !== undefined;

function number(value, digits = 4) {
  if (!isKnown(value)) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return value.toFixed(
    size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? Math.min(digits, 2) : digits,
  );
}

// Differences stand below each other, so small ones have the same digits.
function signed(value, digits = 4) {
  const isSmall = value !== 0 && Math.abs(value) < 1e-4;
  return (value > 0 ? "+" : "") + (isSmall ? value.toFixed(digits) : number(value, digits));
}

function seconds(value) {
  if (value < 100) return `${value.toFixed(1)} s`;
  return value < 6000 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

// How numbers are written, by the name that a cell or a chart gives.
const WRITE = {
  number,
  signed,
  seconds,
  fixed: (value, digits) => value.toFixed(digits),
  whole: (value) => number(Math.round(value)),
  bytes: (value) => (value ? `${(value / 2 ** 30).toFixed(2)} GiB` : "not recorded"),
};

// Something with a value, and perhaps an interval, as text.
function written(told) {
  return isKnown(told.value) ? WRITE[told.write](told.value, told.digits) : "";
}

function interval(told, write = (value) => WRITE[told.write](value, told.digits)) {
  return isKnown(told.low) ? `[${write(told.low)}, ${write(told.high)}]` : "";
}

function choice(label, id, options, chosen, changed) {
  const select = el(
    "select",
    { id, change: (event) => changed(event.target.value) },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)),
  );
  return el("label", { for: id }, label, select);
}

// An entry of a table: text, a number, nothing, or a cell with words or figures below its value.
function entry(told, tag, scope) {
  if (typeof told === "number") return el(tag, { scope }, number(told));
  if (told === null || typeof told === "string") return el(tag, { scope }, told && named(told));
  const changed = isKnown(told.change);
  const note = changed ? signed(told.change) + (told.claimed ? " !" : "") : told.note;
  const below = note || interval(told);
  const node = el(
    tag,
    { class: told.left ? "left" : changed ? "heat" : null, scope },
    typeof told.value === "string" ? named(told.value) : written(told),
    below ? el("small", {}, below) : null,
  );
  if (changed) {
    const strength = (0.08 + 0.5 * Math.abs(told.shade)).toFixed(3);
    node.style.backgroundColor = `rgba(var(--${told.change < 0 ? "low" : "high"}), ${strength})`;
  }
  return node;
}

function table({ name, heads, rows, summaries = 0, tall }) {
  const line = (row, n) => {
    const isSummary = n >= rows.length - summaries;
    const cells = row.map((told, k) => (k ? entry(told, "td") : entry(told, "th", "row")));
    return el("tr", { class: isSummary ? "summary" : null }, cells);
  };
  const head = el("tr", {}, heads.map((told) => entry(told, "th", "col")));
  return el(
    "div",
    { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": name },
    el("table", { class: "plain" }, el("thead", {}, head), el("tbody", {}, rows.map(line))),
  );
}

// Numbers behind a chart; made when somebody asks for them.
function numbers(name, heads, rows, label = "Numbers") {
  const holder = el("div", {});
  const opened = (event) => {
    if (event.target.open && !holder.firstChild)
      holder.append(table({ name, heads, rows: rows(), tall: true }));
  };
  return el(
    "details",
    { toggle: opened, id: uniqueId(`numbers-${name}`) },
    el("summary", {}, label, el("span", { class: "offscreen" }, ` of ${name}`)),
    holder,
  );
}

// Charts may share a title; their identities may not.
const used = new Map();

function uniqueId(text) {
  const name = text.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();
  used.set(name, (used.get(name) || 0) + 1);
  return `${name}-${used.get(name)}`;
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
// Eight colours; beyond them the same in paler tones, and lines are dashed.
const colour = (index) => `c${index % 8} t${Math.min(Math.floor(index / 8), 2)}`;
const shape = (index) => SHAPES[index % SHAPES.length];
// Lines beyond the eighth colour are dashed, and so are further seeds of one method.
const dash = (one) => DASHES[(Math.floor(one.index / 8) + (one.turn || 0)) % DASHES.length] || null;

// What a colour and its mark stand for.
function key(label, index) {
  const sign = svg(
    "svg",
    { class: colour(index), viewBox: "0 0 24 14", "aria-hidden": "true" },
    svg("path", { class: "dot", d: shape(index), transform: "translate(12,7) scale(1.25)" }),
  );
  return el("span", { class: "key" }, sign, named(label));
}

function keys(names) {
  return el("div", { class: "legend" }, names.map(key));
}
