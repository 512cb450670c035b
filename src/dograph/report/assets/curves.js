// Losses over steps, by run or by method, in total or by source.

const RANGES = [
  ["all", "all steps"],
  ["0.5", "last half"],
  ["0.25", "last quarter"],
  ["0.1", "last tenth"],
];
const SUMMARIES = ["mean", "natural", "worst"];

function curves(data, body, state, again) {
  if (!data.runs.some((run) => run.curves.train.total)) {
    body.append(el("p", { class: "soft" }, "No step has been recorded yet."));
    return;
  }
  const repeated = data.groups.some((group) => group.runs.length > 1);
  if (!state.view) state.view = repeated ? "methods" : "runs";
  const every = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves.train)))];
  const names = every.filter((name) => name !== "total");
  const grid = el("div", { class: "grid" });
  const total = Math.max(...data.runs.map((run) => run.steps));
  const range = state.range === "all" ? null : [total * (1 - Number(state.range)), total];
  const pairs =
    state.source === "every" ? names.map((name) => [name, name, name]) : [lossNames(state.source)];
  for (const [label, train, valid] of pairs) {
    const held = valid === "mean" ? "mean over sources" : label;
    grid.append(lossChart(data, state, range, "train", train, `Training loss, ${label}`));
    grid.append(lossChart(data, state, range, "valid", valid, `Validation loss, ${held}`));
  }
  if (state.source === "total") grid.append(...otherCharts(data, state, range));
  body.append(curveControls(data, names, state, again), grid);
}

function curveControls(data, names, state, again) {
  const set = (part) => (value) => {
    state[part] = value;
    again();
  };
  const losses = [
    ["total", "all sources"],
    ["every", "every source, one chart each"],
    ...names.map((name) => [`=${name}`, name]),
  ];
  const views = [
    ["methods", "methods: mean over seeds, 95 % shaded"],
    ["runs", "single runs"],
  ];
  return el(
    "div",
    { class: "controls" },
    names.length > 1
      ? choice("Loss of", "curve-source", losses, state.source, set("source"))
      : null,
    data.runs.length > 1 ? choice("Lines", "curve-view", views, state.view, set("view")) : null,
    choice("Steps", "curve-range", RANGES, state.range, set("range")),
  );
}

function otherCharts(data, state, range) {
  const summaries = [
    ["natural", "weighted by training tokens"],
    ["worst", "worst source"],
  ];
  const found = summaries
    .filter(([name]) => data.runs.some((run) => run.curves.valid[name]))
    .map(([name, label]) =>
      lossChart(data, state, range, "valid", name, `Validation loss, ${label}`),
    );
  if (data.runs.length === 1) found.push(sourcesChart(data.runs[0], range));
  found.push(runChart(data, "lr", "Learning rate", "of each step", range));
  found.push(
    runChart(data, "speed", "Tokens per second", "on the clock, validation left out", range),
  );
  return found;
}

function lossNames(source) {
  const name = source.slice(1);
  return source === "total" ? ["all sources", "total", "mean"] : [name, name, name];
}

function lossChart(data, state, range, part, name, title) {
  const note = part === "train" ? "nats per token" : "nats per token, held-out text";
  const single = data.runs.length === 1;
  if (state.view === "methods" && !single) {
    const series = data.groups
      .map((group, index) => ({
        name: group.name,
        index,
        ...bandOf(group[part][name]),
        dots: part === "valid" && isShort(group[part][name]),
      }))
      .filter((one) => one.line.x.length);
    return lineChart({ title, note: `${note}; shaded: 95 % over seeds`, series, range });
  }
  const series = runSeries(data, data.runs, (run) => run.curves[part][name], data.runs.length <= 6);
  return lineChart({ title, note, series, range });
}

function bandOf(band) {
  return band
    ? { line: { x: band.x, y: band.y }, low: band.low, high: band.high }
    : { line: { x: [], y: [] } };
}

const isShort = (band) => Boolean(band) && band.x.length <= 40;

function seriesOf(curve, name, index, withRaw) {
  return {
    name,
    index,
    line: curve.smooth || curve.raw,
    raw: curve.smooth && withRaw ? curve.raw : null,
    dots: !curve.smooth && curve.raw.x.length <= 40,
  };
}

// A method has a colour, its seeds have dashes; runs of a single method have a colour each.
function runSeries(data, runs, curveOf, withRaw) {
  const several = data.groups.length > 1;
  return runs
    .map((run, k) => {
      const group = data.groups.findIndex((one) => one.name === run.group);
      const curve = curveOf(run);
      if (!curve || !curve.raw.x.length) return null;
      return {
        ...seriesOf(curve, run.name, several ? group : k, withRaw),
        turn: several ? data.groups[group].runs.indexOf(run.name) : 0,
      };
    })
    .filter(Boolean);
}

function sourcesChart(run, range) {
  const names = Object.keys(run.curves.valid).filter((name) => !SUMMARIES.includes(name));
  const series = names.map((name, index) => seriesOf(run.curves.valid[name], name, index, false));
  return lineChart({
    title: "Validation loss by source",
    note: "nats per token, held-out text",
    series,
    range,
  });
}

function runChart(data, part, title, note, range) {
  const series = runSeries(data, data.runs, (run) => run.curves[part], false);
  return lineChart({ title, note, series, range, zero: true, height: 220 });
}
