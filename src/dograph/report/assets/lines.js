// Lines over steps: bold as smoothed, faint as measured, shaded intervals; a cursor by mouse and keys.

const hidden = new Set(); // names of lines that the reader switched off, kept over redraws

// series: {name, index, line: {x, y}, raw: {x, y} | null, low, high, dots}
function lineChart(options) {
  const plot = el("div", { class: "plot" });
  const height = options.height || 250;
  const shown = () => options.series.filter((one) => !hidden.has(`${options.title}/${one.name}`));
  const draw = (width) => drawLines(plot, width, height, shown(), options);
  const legend =
    options.series.length > 1
      ? el(
          "div",
          { class: "legend", role: "group", "aria-label": `lines of ${options.title}` },
          options.series.map((one) => legendButton(one, options, () => drawNow(plot))),
        )
      : null;
  drawWhenSeen(plot, height, draw);
  return frame(
    options.title,
    options.note,
    legend,
    plot,
    numbers(options.title, ["line", options.xName || "step", "value", "95 %"], () =>
      lineRows(options),
    ),
  );
}

function legendButton(one, options, redraw) {
  const key = `${options.title}/${one.name}`;
  const pressed = (event) => {
    if (hidden.has(key)) hidden.delete(key);
    else hidden.add(key);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(key)));
    redraw();
  };
  const sign = svg(
    "svg",
    { class: colour(one.index), viewBox: "0 0 24 14", "aria-hidden": "true" },
    svg("line", { class: "line", x1: 1, x2: 23, y1: 7, y2: 7, "stroke-dasharray": dash(one) }),
    one.dots
      ? svg("path", { class: "dot", d: shape(one.index), transform: "translate(12,7)" })
      : null,
  );
  return el(
    "button",
    { type: "button", "aria-pressed": String(!hidden.has(key)), click: pressed },
    sign,
    named(one.name),
  );
}

function lineRows(options) {
  const rows = [];
  for (const one of options.series) {
    one.line.x.forEach((x, k) =>
      rows.push([
        named(one.name),
        number(x),
        number(one.line.y[k]),
        one.low ? `[${number(one.low[k])}, ${number(one.high[k])}]` : "",
      ]),
    );
  }
  return rows;
}

function within(range, line) {
  if (!range) return line.x.map((_, k) => k);
  return line.x.map((_, k) => k).filter((k) => line.x[k] >= range[0] && line.x[k] <= range[1]);
}

// Faint lines may leave the picture at the top in the first steps; bold ones and bands may not.
function extent(series, range, logY) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  const take = (value) => {
    if (logY && !(value > 0)) return;
    y0 = Math.min(y0, value);
    y1 = Math.max(y1, value);
  };
  for (const one of series) {
    for (const k of within(range, one.line)) {
      x0 = Math.min(x0, one.line.x[k]);
      x1 = Math.max(x1, one.line.x[k]);
      take(one.line.y[k]);
      if (one.low) {
        take(one.low[k]);
        take(one.high[k]);
      }
    }
    if (one.raw) for (const k of within(range, one.raw)) take(one.raw.y[k]);
  }
  return { x0, x1, y0, y1 };
}

function drawLines(plot, width, height, series, options) {
  plot.replaceChildren();
  const found = extent(series, options.range, options.logY);
  if (!Number.isFinite(found.y0)) {
    plot.append(el("p", { class: "soft" }, "Nothing to draw."));
    return;
  }
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    tabindex: "0",
    "aria-label": told(series, options),
  });
  const xs = [found.x0, found.x1];
  const place = axes(picture, { width, height }, xs, heights(found, options), options);
  const clip = uniqueId("clip");
  const inside = {
    x: place.left - 2,
    y: 0,
    width: Math.max(width - place.left + 4, 1),
    height: height - 32,
  };
  picture.append(
    svg("clipPath", { id: clip }, svg("rect", inside)),
    svg(
      "g",
      { "clip-path": `url(#${clip})` },
      series.map((one, k) => {
        // At a single step points lie side by side, or they would cover each other.
        const apart = Math.min(14, (width - place.left - 24) / series.length);
        const aside = found.x1 > found.x0 ? 0 : apart * (k - (series.length - 1) / 2);
        return drawSeries(one, { ...place, x: (value) => place.x(value) + aside }, options);
      }),
    ),
  );
  plot.append(picture);
  cursor(plot, picture, series, place, { width, height }, options);
}

// From where to where the axis goes; some room above and below, or from zero.
function heights({ y0, y1 }, options) {
  if (options.logY) return [y0, Math.max(y1, y0 * 1.0001)];
  const pad = (y1 - y0) * 0.04 || Math.abs(y1) * 0.05 || 1;
  return [options.zero || (y0 === 0 && y1 === 0) ? Math.min(0, y0) : y0 - pad, y1 + pad];
}

function drawSeries(one, place, options) {
  const group = svg("g", { class: colour(one.index) });
  const path = (line) => {
    const places = within(options.range, line)
      .filter((k) => !options.logY || line.y[k] > 0)
      .map((k) => `${place.x(line.x[k]).toFixed(1)},${place.y(line.y[k]).toFixed(1)}`);
    return places.length ? `M${places.join("L")}` : null;
  };
  if (one.low) group.append(svg("path", { class: "band", d: bandPath(one, options, place) }));
  if (one.raw) group.append(svg("path", { class: "raw", d: path(one.raw) }));
  group.append(svg("path", { class: "line", d: path(one.line), "stroke-dasharray": dash(one) }));
  const dotted = one.dots || one.line.x.length < 2 ? within(options.range, one.line) : [];
  for (const k of dotted.filter((k) => !options.logY || one.line.y[k] > 0)) {
    const at = `translate(${place.x(one.line.x[k])},${place.y(one.line.y[k])})`;
    group.append(svg("path", { class: "dot", d: shape(one.index), transform: at }));
  }
  return group;
}

function bandPath(one, options, place) {
  const at = within(options.range, one.line);
  const edge = (values, order) =>
    order.map((k) => `${place.x(one.line.x[k]).toFixed(1)},${place.y(values[k]).toFixed(1)}`);
  if (!at.length) return null;
  if (at.length === 1) {
    // A single point has no area to shade.
    const [x, top, foot] = [place.x(one.line.x[at[0]]), one.high[at[0]], one.low[at[0]]];
    return `M${x - 3},${place.y(top)}h6V${place.y(foot)}h-6Z`;
  }
  return `M${[...edge(one.high, at), ...edge(one.low, [...at].reverse())].join("L")}Z`;
}

function told(series, options) {
  const ends = series
    .slice(0, 8)
    .map((one) => `${one.name} ends at ${number(one.line.y[one.line.y.length - 1])}`);
  return `${options.title}, ${series.length} lines. ${ends.join("; ")}. Arrow keys read values; a table follows.`;
}

function cursor(plot, picture, series, place, box, options) {
  const rule = svg("line", { class: "cursor", y1: 8, y2: box.height - 38, visibility: "hidden" });
  const tip = el("div", { class: "tip", hidden: true });
  const said = el("div", { class: "offscreen", "aria-live": "polite" });
  picture.append(rule);
  plot.append(tip, said);
  if (!series.length) return;
  const steps = [
    ...new Set(series.flatMap((one) => within(options.range, one.line).map((k) => one.line.x[k]))),
  ].sort((a, b) => a - b);
  let at = steps.length - 1;
  const show = (aloud) => {
    const step = steps[at];
    const rows = series
      .filter(({ line }) => line.x[0] <= step && step <= line.x[line.x.length - 1])
      .map((one) => [one, nearest(one.line.x, step)])
      .map(([one, k]) => [one, one.line.y[k]])
      .sort((a, b) => b[1] - a[1])
      .slice(0, 12);
    rule.setAttribute("x1", place.x(step));
    rule.setAttribute("x2", place.x(step));
    rule.setAttribute("visibility", "visible");
    const name = `${options.xName || "step"} ${number(step)}`;
    tip.replaceChildren(
      el("div", {}, name),
      ...rows.map(([one, value]) =>
        el("div", { class: colour(one.index) }, el("i"), named(one.name), ` ${number(value)}`),
      ),
    );
    tip.hidden = false;
    const right = place.x(step) > box.width / 2;
    tip.style.left = right ? "auto" : `${place.x(step) + 10}px`;
    tip.style.right = right ? `${box.width - place.x(step) + 10}px` : "auto";
    if (aloud)
      said.textContent = `${name}: ${rows.map(([one, value]) => `${one.name} ${number(value)}`).join(", ")}`;
  };
  const hide = () => {
    tip.hidden = true;
    rule.setAttribute("visibility", "hidden");
  };
  picture.addEventListener("pointermove", (event) => {
    const x =
      ((event.clientX - picture.getBoundingClientRect().left) / picture.clientWidth) * box.width;
    const places = steps.map((step) => place.x(step));
    at = nearest(places, x);
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
