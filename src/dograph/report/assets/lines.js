// Line charts: smoothed lines, faint raw values, shaded intervals, a cursor for mouse and keys.

const HEIGHT = 250; // pixels
// One line for several runs, as made by `distinct` in series.py: its name lists them.
const isShared = (one) => one?.name?.endsWith("(identical)");
const hidden = new Set(); // lines that the reader switched off, kept over redraws

function lineChart(chart) {
  const id = (one) => `${chart.title}/${one.name}`;
  const shown = () => chart.series.filter((one) => !hidden.has(id(one)));
  const button = (one) => {
    const pressed = (event) => {
      if (!hidden.delete(id(one))) hidden.add(id(one));
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(id(one))));
      drawNow(plot);
    };
    const line = { class: "line", x1: 1, x2: 23, y1: 7, y2: 7, "stroke-dasharray": dashOf(one) };
    const dot = one.dots ? marker(one.index, "translate(12,7)") : null;
    return el(
      "button",
      { type: "button", "aria-pressed": String(!hidden.has(id(one))), click: pressed },
      sign(one.index, svg("line", line), dot),
      named(one.name),
    );
  };
  const group = { class: "legend", role: "group", "aria-label": `lines of ${chart.title}` };
  const row = (one) => (x, k) =>
    [one.name, x, one.y[k], interval(one.low && { low: one.low[k], high: one.high[k] }, number)];
  const rows = () => chart.series.flatMap((one) => one.x.map(row(one)));
  const { node, plot } = figure(
    chart,
    HEIGHT,
    (width) => drawLines({ width, height: HEIGHT }, shown(), chart),
    chart.series.length > 1 || isShared(chart.series[0]) ? el("div", group, chart.series.map(button)) : null,
    numbers(chart.title, ["line", "step", "value", "95 %"], rows),
  );
  return node;
}

// Indices of the points in the chosen range of steps.
function within(chart, line) {
  const [first, last] = chart.range || [-Infinity, Infinity];
  return line.x.map((_, k) => k).filter((k) => line.x[k] >= first && line.x[k] <= last);
}

// The ranges of both axes: all that is drawn with a margin, or from zero.
function extent(series, chart) {
  const [xs, ys] = [[], []];
  for (const one of series) {
    for (const k of within(chart, one)) {
      xs.push(one.x[k]);
      ys.push(one.y[k], ...(one.low ? [one.low[k], one.high[k]] : []));
    }
    if (one.raw && chart.faint) ys.push(...within(chart, one.raw).map((k) => one.raw.y[k]));
  }
  if (!ys.length) return null;
  const [y0, y1] = bounds(ys);
  const across = chart.range || bounds([1, data.steps, ...xs]);
  const margin = (y1 - y0) * 0.04 || Math.abs(y1) * 0.05 || 1;
  const fromZero = chart.zero || (y0 === 0 && y1 === 0);
  return { xs: across, ys: [fromZero ? Math.min(0, y0) : y0 - margin, y1 + margin] };
}

function drawLines(box, series, chart) {
  const ranges = extent(series, chart);
  if (!ranges) return soft("Nothing to draw.");
  const ends = series.slice(0, 8).map((one) => `${one.name} ends at ${number(one.y.at(-1))}`);
  const label = `${chart.title}, ${series.length} lines. ${ends.join("; ")}. Arrow keys read values; a table follows.`;
  const picture = canvas(box, label, { tabindex: "0" });
  const place = axes(box, ranges.xs, ranges.ys);
  const clip = uniqueId("clip");
  const inside = { x: place.left - 2, y: 0, height: box.height - 32 };
  inside.width = Math.max(box.width - place.left + 4, 1);
  // At a single step, points are drawn side by side so that they do not cover each other.
  const [right, steps] = [box.width - 12, new Set(series.flatMap((one) => one.x))];
  const apart = Math.min(14, (right - place.left - 12) / series.length);
  const beside = (x, k) =>
    Math.min(x - (apart * (series.length - 1)) / 2, right - apart * (series.length - 1)) + apart * k;
  const lines = series.map((one, k) => {
    const x = (step) => (steps.size > 1 ? place.x(step) : beside(place.x(step), k));
    return drawSeries(one, { ...place, x }, chart);
  });
  picture.append(
    ...place.layers,
    svg("clipPath", { id: clip }, svg("rect", inside)),
    svg("g", { "clip-path": `url(#${clip})` }, lines),
  );
  return [picture, ...cursor(picture, series, place, box, chart)];
}

function drawSeries(one, place, chart) {
  const at = (x, y) => `${place.x(x).toFixed(1)},${place.y(y).toFixed(1)}`;
  const path = (line) => {
    const points = within(chart, line).map((k) => at(line.x[k], line.y[k]));
    return points.length ? `M${points.join("L")}` : null;
  };
  const drawn = within(chart, one);
  const band = () => {
    if (drawn.length === 1) {
      const [k] = drawn; // a single point has no area to shade
      return `M${place.x(one.x[k]) - 3},${place.y(one.high[k])}h6V${place.y(one.low[k])}h-6Z`;
    }
    const upper = drawn.map((k) => at(one.x[k], one.high[k]));
    const lower = drawn.map((k) => at(one.x[k], one.low[k])).reverse();
    return `M${[...upper, ...lower].join("L")}Z`;
  };
  const dots = one.dots || one.x.length < 2 ? drawn : [];
  return svg(
    "g",
    { class: colour(one.index) },
    one.low && drawn.length ? svg("path", { class: "band", d: band() }) : null,
    one.raw && chart.faint ? svg("path", { class: "raw", d: path(one.raw) }) : null,
    svg("path", { class: "line", d: path(one), "stroke-dasharray": dashOf(one) }),
    dots.map((k) => marker(one.index, `translate(${at(one.x[k], one.y[k])})`)),
  );
}

// The values at one step, with a vertical line that follows the mouse or the arrow keys.
function cursor(picture, series, place, box, chart) {
  const rule = svg("line", { class: "cursor", y1: 8, y2: box.height - 38, visibility: "hidden" });
  const tip = el("div", { class: "tip", hidden: true });
  const spoken = el("div", { class: "offscreen", "aria-live": "polite" });
  picture.append(rule);
  const every = series.flatMap((one) => within(chart, one).map((k) => one.x[k]));
  const steps = [...new Set(every)].sort((a, b) => a - b);
  let at = steps.length - 1;
  const show = (aloud) => {
    const [step, x] = [steps[at], place.x(steps[at])];
    const rows = series
      .filter((one) => one.x[0] <= step && step <= one.x.at(-1))
      .map((one) => [one, one.y[nearest(one.x, step)]])
      .sort((a, b) => b[1] - a[1])
      .slice(0, 12);
    fill(rule, { x1: x, x2: x, visibility: "visible" }, []);
    const name = `step ${number(step)}`;
    const line = ([one, value]) =>
      el("div", { class: colour(one.index) }, el("i"), named(one.name), ` ${number(value)}`);
    tip.replaceChildren(el("div", {}, name), ...rows.map(line));
    tip.hidden = false;
    const isRight = x > box.width / 2;
    tip.style.left = isRight ? "auto" : `${x + 10}px`;
    tip.style.right = isRight ? `${box.width - x + 10}px` : "auto";
    const values = rows.map(([one, value]) => `${one.name} ${number(value)}`);
    if (aloud) spoken.textContent = `${name}: ${values.join(", ")}`;
  };
  const hide = () => {
    tip.hidden = true;
    rule.setAttribute("visibility", "hidden");
  };
  const followMouse = (event) => {
    const from = event.clientX - picture.getBoundingClientRect().left;
    at = nearest(steps.map(place.x), (from / picture.clientWidth) * box.width);
    show(false);
  };
  const followKeys = (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    at = Math.min(Math.max(moves[event.key], 0), steps.length - 1);
    show(true);
  };
  const events = { pointermove: followMouse, pointerleave: hide, blur: hide, keydown: followKeys };
  fill(picture, events, []);
  return [tip, spoken];
}

// Index of the nearest value in an ascending list.
function nearest(values, wanted) {
  const away = values.map((value) => Math.abs(value - wanted));
  return away.indexOf(bounds(away)[0]);
}
