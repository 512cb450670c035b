// One function for every kind of record in the page's data.

const list = (items, kind = null) =>
  el("ul", { class: kind }, items.map((text) => el("li", {}, named(text))));
// Words of a command, which break between them and not after a hyphen.
const words = (text) => text.split(/(\s)/).map((word) => (word.trim() ? named(word) : word));
const fact = ([name, value]) => [el("dt", {}, name), el("dd", {}, named(value))];
const STYLES = {
  soft,
  claim: (text) => el("p", { class: "claim" }, named(text)),
  heading: (text) => el("h3", {}, named(text)),
  command: (text) => el("pre", { class: "command", tabindex: "0" }, el("code", {}, words(text))),
  list: (items) => list(items),
  "soft list": (items) => list(items, "soft"),
  warnings: (items) =>
    el("div", { class: "warnings", role: "note" }, el("h3", {}, "Warnings"), list(items)),
  facts: (values) => el("dl", { class: "facts" }, Object.entries(values).map(fact)),
  samples: (items) => el("div", {}, items.map(exampleText)),
  group: (items) => el("div", {}, items.map(item)),
  grid: (items) => el("div", { class: "grid" }, items.map(item)),
  folded: (items, { id, title }) =>
    el("details", { id }, el("summary", {}, named(title)), items.map(item)),
};
const KINDS = {
  PageBlock: (block) => STYLES[block.style](block.content, block),
  PageTable: table,
  LineChart: lineChart,
  DotChart: dotChart,
  LossCharts: lossCharts,
};

const item = (record) => KINDS[record.kind](record);

const RANGES = { all: "all steps", 0.5: "last half", 0.25: "last quarter", 0.1: "last tenth" };
const VIEWS = { methods: "methods: mean over seeds", runs: "single runs" };

// Loss charts with menus: all sources or one, single runs or methods, all steps or the last.
function lossCharts({ names, view, charts }) {
  const chosen = state.view || view;
  const range = state.range === "all" ? null : [data.steps * (1 - Number(state.range)), data.steps];
  const isWanted = ([source, own]) =>
    (state.source === "every" ? source !== "total" : source === state.source.replace("=", "")) &&
    (!own || own === chosen);
  const menu = (label, name, options, value) =>
    choice(label, `curve-${name}`, options, value, (changed) => {
      state[name] = changed;
      redraw("curves");
    });
  const losses = [
    ["total", "all sources"],
    ["every", "every source, one chart each"],
    ...names.map((name) => [`=${name}`, name]),
  ];
  const controls = [
    names.length > 1 ? menu("Loss", "source", losses, state.source) : null,
    charts.some(([, own]) => own) ? menu("Lines", "view", Object.entries(VIEWS), chosen) : null,
    menu("Steps", "range", Object.entries(RANGES), state.range),
  ];
  const shown = charts.filter(isWanted).map(([, , chart]) => lineChart({ ...chart, range }));
  return [el("div", { class: "controls" }, controls), el("div", { class: "grid" }, shown)];
}
