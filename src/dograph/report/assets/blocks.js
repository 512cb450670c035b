// One function for every kind of record that the page's data is made of.

const TEXTS = {
  soft: (text) => el("p", { class: "soft" }, named(text)),
  claim: (text) => el("p", { class: "claim" }, named(text)),
  heading: (text) => el("h3", {}, named(text)),
  command: (text) => el("pre", { class: "command", tabindex: "0" }, el("code", {}, text)),
};

const BLOCKS = {
  PageText: ({ style, text }) => TEXTS[style](text),
  PageList: list,
  PageFacts: ({ rows }) =>
    el(
      "dl",
      { class: "facts" },
      rows.map(([name, value]) => [
        el("dt", {}, name),
        el("dd", {}, named(typeof value === "string" ? value : written(value))),
      ]),
    ),
  PageTable: table,
  LegendKeys: ({ names }) => keys(names),
  BlockGroup: ({ grid, blocks }) => el("div", { class: grid ? "grid" : null }, blocks.map(block)),
  Folded: ({ id, title, blocks }) =>
    el("details", { id }, el("summary", {}, named(title)), blocks.map(block)),
  LineChart: lineChart,
  DotChart: dotChart,
  BarChart: barChart,
  LossCharts: lossCharts,
};

function block(told) {
  return BLOCKS[told.kind](told);
}

function list({ style, items }) {
  const lines = items.map((text) => el("li", {}, named(text)));
  if (style !== "warnings") return el("ul", { class: style === "soft" ? "soft" : null }, lines);
  return el("div", { class: "warnings", role: "note" }, el("h3", {}, "Warnings"), el("ul", {}, lines));
}

const RANGES = [
  ["all", "all steps"],
  ["0.5", "last half"],
  ["0.25", "last quarter"],
  ["0.1", "last tenth"],
];
const VIEWS = [
  ["methods", "methods: mean over seeds, 95 % shaded"],
  ["runs", "single runs"],
];

// Losses to choose from: of all sources or one of them, of runs or of methods, of some steps.
function lossCharts(told) {
  const view = state.view || told.view;
  const range = state.range === "all" ? null : [told.steps * (1 - Number(state.range)), told.steps];
  const isWanted = ([of, own]) =>
    (state.source === "every" ? of !== "total" : of === state.source.replace("=", "")) &&
    (!own || own === view);
  const set = (part) => (value) => {
    state[part] = value;
    again("curves");
  };
  const losses = [
    ["total", "all sources"],
    ["every", "every source, one chart each"],
    ...told.names.map((name) => [`=${name}`, name]),
  ];
  const several = told.charts.some(([, own]) => own);
  return [
    el(
      "div",
      { class: "controls" },
      told.names.length > 1
        ? choice("Loss of", "curve-source", losses, state.source, set("source"))
        : null,
      several ? choice("Lines", "curve-view", VIEWS, view, set("view")) : null,
      choice("Steps", "curve-range", RANGES, state.range, set("range")),
    ),
    el(
      "div",
      { class: "grid" },
      told.charts.filter(isWanted).map(([, , chart]) => lineChart({ ...chart, range })),
    ),
  ];
}
