// Lines over steps: bold as smoothed, faint as measured, shaded intervals; a cursor by mouse and keys.

const hidden = new Set(); // names of lines that the reader switched off, kept over redraws

function lineChart(chart) {
  const plot = el("div", { class: "plot" });
  const shown = () => chart.series.filter((one) => !hidden.has(`${chart.title}/${one.name}`));
  drawWhenSeen(plot, chart.height, (width) => drawLines(plot, width, shown(), chart));
  const buttons = () => chart.series.map((one) => legendButton(one, chart, () => drawNow(plot)));
  const label = `lines of ${chart.title}`;
  return frame(
    chart,
    chart.series.length > 1
      ? el("div", { class: "legend", role: "group", "aria-label": label }, buttons())
      : null,
    plot,
    numbers(chart.title, ["line", chart.x_name, "value", "95 %"], () =>
      chart.series.flatMap((one) =>
        one.x.map((x, k) => [
          one.name,
          number(x),
          number(one.y[k]),
          hasBand(one) ? `[${number(one.low[k])}, ${number(one.high[k])}]` : "",
        ]),
      ),
    ),
  );
}

const hasBand = (one) => Boolean(one.low) && one.low.every(isKnown);

function legendButton(one, chart, redraw) {
  const name = `${chart.title}/${one.name}`;
  const pressed = (event) => {
    if (hidden.has(name)) hidden.delete(name);
    else hidden.add(name);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
    redraw();
  };
  const dot = { class: "dot", d: shape(one.index), transform: "translate(12,7)" };
  const sign = svg(
    "svg",
    { class: colour(one.index), viewBox: "0 0 24 14", "aria-hidden": "true" },
    svg("line", { class: "line", x1: 1, x2: 23, y1: 7, y2: 7, "stroke-dasharray": dash(one) }),
    one.dots ? svg("path", dot) : null,
  );
  return el(
    "button",
    { type: "button", "aria-pressed": String(!hidden.has(name)), click: pressed },
    sign,
    named(one.name),
  );
}

// Which points are within the steps that the reader chose, and can be drawn.
function within(chart, line) {
  const [first, last] = chart.range || [-Infinity, Infinity];
  return line.x.map((_, k) => k).filter((k) => line.x[k] >= first && line.x[k] <= last);
}

// From where to where axes go: over all that is drawn, with room above and below, or from zero.
function extent(series, chart) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  const take = (value) => {
    if (chart.log_y && !(value > 0)) return;
    y0 = Math.min(y0, value);
    y1 = Math.max(y1, value);
  };
  for (const one of series) {
    for (const k of within(chart, one)) {
      x0 = Math.min(x0, one.x[k]);
      x1 = Math.max(x1, one.x[k]);
      take(one.y[k]);
      if (hasBand(one)) [one.low[k], one.high[k]].forEach(take);
    }
    if (one.raw && chart.faint) within(chart, one.raw).forEach((k) => take(one.raw.y[k]));
  }
  const pad = (y1 - y0) * 0.04 || Math.abs(y1) * 0.05 || 1;
  if (!Number.isFinite(y0)) return null;
  if (chart.log_y) return { xs: [x0, x1], ys: [y0, Math.max(y1, y0 * 1.0001)] };
  const fromZero = chart.zero || (y0 === 0 && y1 === 0);
  return { xs: [x0, x1], ys: [fromZero ? Math.min(0, y0) : y0 - pad, y1 + pad] };
}

function drawLines(plot, width, series, chart) {
  plot.replaceChildren();
  const found = extent(series, chart);
  if (!found) {
    plot.append(el("p", { class: "soft" }, "Nothing to draw."));
    return;
  }
  const box = { width, height: chart.height };
  const ends = series.slice(0, 8).map((one) => `${one.name} ends at ${number(one.y.at(-1))}`);
  const label = `${chart.title}, ${series.length} lines. ${ends.join("; ")}. Arrow keys read values; a table follows.`;
  const picture = canvas(box, label, { tabindex: "0" });
  const place = axes(picture, box, found.xs, found.ys, chart);
  const clip = uniqueId("clip");
  const inside = { x: place.left - 2, y: 0, height: box.height - 32 };
  inside.width = Math.max(width - place.left + 4, 1);
  // At a single step points lie side by side, or they would cover each other.
  const apart = Math.min(14, (width - place.left - 24) / series.length);
  const lines = series.map((one, k) => {
    const aside = found.xs[1] > found.xs[0] ? 0 : apart * (k - (series.length - 1) / 2);
    return drawSeries(one, { ...place, x: (value) => place.x(value) + aside }, chart);
  });
  picture.append(
    svg("clipPath", { id: clip }, svg("rect", inside)),
    svg("g", { "clip-path": `url(#${clip})` }, lines),
  );
  plot.append(picture);
  cursor(plot, picture, series, place, box, chart);
}

function drawSeries(one, place, chart) {
  const drawn = (line) => within(chart, line).filter((k) => !chart.log_y || line.y[k] > 0);
  const path = (line) => {
    const places = drawn(line).map(
      (k) => `${place.x(line.x[k]).toFixed(1)},${place.y(line.y[k]).toFixed(1)}`,
    );
    return places.length ? `M${places.join("L")}` : null;
  };
  const group = svg(
    "g",
    { class: colour(one.index) },
    hasBand(one) ? svg("path", { class: "band", d: bandPath(one, chart, place) }) : null,
    one.raw && chart.faint ? svg("path", { class: "raw", d: path(one.raw) }) : null,
    svg("path", { class: "line", d: path(one), "stroke-dasharray": dash(one) }),
  );
  for (const k of one.dots || one.x.length < 2 ? drawn(one) : []) {
    const at = `translate(${place.x(one.x[k])},${place.y(one.y[k])})`;
    group.append(svg("path", { class: "dot", d: shape(one.index), transform: at }));
  }
  return group;
}

function bandPath(one, chart, place) {
  const at = within(chart, one);
  const edge = (values, order) =>
    order.map((k) => `${place.x(one.x[k]).toFixed(1)},${place.y(values[k]).toFixed(1)}`);
  if (!at.length) return null;
  if (at.length === 1) {
    // A single point has no area to shade.
    const [x, top, foot] = [place.x(one.x[at[0]]), one.high[at[0]], one.low[at[0]]];
    return `M${x - 3},${place.y(top)}h6V${place.y(foot)}h-6Z`;
  }
  return `M${[...edge(one.high, at), ...edge(one.low, [...at].reverse())].join("L")}Z`;
}

// The values at one step, beside a rule that follows the mouse or the arrow keys.
function cursor(plot, picture, series, place, box, chart) {
  const rule = svg("line", { class: "cursor", y1: 8, y2: box.height - 38, visibility: "hidden" });
  const tip = el("div", { class: "tip", hidden: true });
  const said = el("div", { class: "offscreen", "aria-live": "polite" });
  picture.append(rule);
  plot.append(tip, said);
  if (!series.length) return;
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
    const name = `${chart.x_name} ${number(step)}`;
    const line = ([one, value]) =>
      el("div", { class: colour(one.index) }, el("i"), named(one.name), ` ${number(value)}`);
    tip.replaceChildren(el("div", {}, name), ...rows.map(line));
    tip.hidden = false;
    const right = x > box.width / 2;
    tip.style.left = right ? "auto" : `${x + 10}px`;
    tip.style.right = right ? `${box.width - x + 10}px` : "auto";
    const values = rows.map(([one, value]) => `${one.name} ${number(value)}`);
    if (aloud) said.textContent = `${name}: ${values.join(", ")}`;
  };
  const hide = () => {
    tip.hidden = true;
    rule.setAttribute("visibility", "hidden");
  };
  picture.addEventListener("pointermove", (event) => {
    const from = event.clientX - picture.getBoundingClientRect().left;
    at = nearest(steps.map(place.x), (from / picture.clientWidth) * box.width);
    show(false);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    at = Math.min(Math.max(moves[event.key], 0), steps.length - 1);
    show(true);
  });
}

// Index of the value nearest to one that is looked for, in an ascending list.
function nearest(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle;
    else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}
