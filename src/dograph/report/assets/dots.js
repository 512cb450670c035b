// Figures with their intervals, one below the other; and bars made of parts.

// rows: {name, index, value, low, high, text: {low, high} | null, mark}; reference: a line to see them by
function dotChart(options) {
  const plot = el("div", { class: "plot" });
  const rowHeight = 40;
  const height = options.rows.length * rowHeight + 44;
  drawWhenSeen(plot, height, (width) => drawDots(plot, width, height, rowHeight, options));
  const write = options.write || number;
  return frame(
    options.title,
    options.note,
    plot,
    numbers(
      options.title,
      ["", "value", "95 %", ...(options.textName ? [options.textName] : [])],
      () =>
        options.rows.map((row) => [
          named(row.name),
          write(row.value),
          interval(row, write),
          ...(options.textName ? [row.text ? interval(row.text, write) : ""] : []),
        ]),
    ),
  );
}

function drawDots(plot, width, height, rowHeight, options) {
  plot.replaceChildren();
  const of = (row) => [row.value, row.low, row.high, row.mark, row.text?.low, row.text?.high];
  const ends = [...options.rows.flatMap(of), options.reference].filter(
    (value) => value !== null && value !== undefined,
  );
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  const label = `${options.title}: ${options.rows.length} rows; a table follows`;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": label,
  });
  const x = scale(low - pad, high + pad, 8, width - 8);
  const bottom = height - 34;
  const marks = ticks(low - pad, high + pad, Math.max(2, Math.floor(width / 110)));
  for (const value of marks) picture.append(upright("grid-line", x(value), 0, bottom));
  picture.append(bottomAxis(marks, x, width, height, options.xName));
  if (options.reference !== undefined)
    picture.append(upright("zero", x(options.reference), 0, bottom));
  options.rows.forEach((row, k) =>
    picture.append(dotRow(row, k * rowHeight + 27, x, width, options.write || number)),
  );
  plot.append(picture);
}

function upright(kind, x, y1, y2) {
  return svg("line", { class: kind, x1: x, x2: x, y1, y2 });
}

function bottomAxis(marks, x, width, height, name) {
  const write = tickText(marks);
  const layer = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const value of marks) {
    const at = Math.min(Math.max(x(value), 14), width - 18);
    layer.append(svg("text", { x: at, y: height - 19, "text-anchor": "middle" }, write(value)));
  }
  layer.append(svg("text", { x: width / 2, y: height - 3, "text-anchor": "middle" }, name || ""));
  return layer;
}

function dotRow(row, y, x, width, write) {
  const across = (kind, ends) =>
    svg("line", { class: kind, x1: x(ends.low), x2: x(ends.high), y1: y, y2: y });
  const isKnown = (value) => value !== null && value !== undefined;
  const label = `${row.name}   ${write(row.value)} ${interval(row, write)}`;
  return svg(
    "g",
    { class: `over ${colour(row.index)}` },
    svg("text", { x: 8, y: y - 11 }, shorten(label, width)),
    row.text ? across("whisker thin", row.text) : null,
    isKnown(row.low) ? across("whisker", row) : null,
    isKnown(row.mark) ? upright("zero", x(row.mark), y - 8, y + 8) : null,
    svg("path", {
      class: "dot",
      d: shape(row.index),
      transform: `translate(${x(row.value)},${y}) scale(1.3)`,
    }),
  );
}

function shorten(text, width) {
  const most = Math.floor((width - 16) / 7.2);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// bars: {name, parts: [[label index, value]]}; labels name the parts; total: bars are of 100 %
function barChart(options) {
  const plot = el("div", { class: "plot" });
  const rowHeight = options.whole ? 26 : 46;
  const height = options.bars.length * rowHeight + (options.whole ? 6 : 40);
  drawWhenSeen(plot, height, (width) => drawBars(plot, width, height, rowHeight, options));
  const legend = options.bare
    ? null
    : el(
        "div",
        { class: "legend" },
        options.labels.map((label, k) => key(label, k)),
      );
  return frame(
    options.title,
    options.note,
    legend,
    plot,
    numbers(options.title, ["", ...options.labels.map(named)], () =>
      options.bars.map((bar) => {
        const of = new Map(bar.parts);
        return [
          named(bar.name),
          ...options.labels.map((_, k) => (of.has(k) ? options.write(of.get(k)) : "")),
        ];
      }),
    ),
  );
}

function key(label, index) {
  const sign = svg(
    "svg",
    { class: colour(index), viewBox: "0 0 24 14", "aria-hidden": "true" },
    svg("path", { class: "dot", d: shape(index), transform: "translate(12,7) scale(1.25)" }),
  );
  return el("span", { class: "key" }, sign, named(label));
}

function drawBars(plot, width, height, rowHeight, options) {
  plot.replaceChildren();
  const totals = options.bars.map((bar) => bar.parts.reduce((sum, [, value]) => sum + value, 0));
  const most = options.whole ? 1 : Math.max(...totals, 1e-12);
  const label = `${options.title}: ${options.bars.length} bars; a table follows`;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": label,
  });
  const left = options.whole ? 88 : 2; // short names stand beside their bar, long ones above it
  const x = scale(0, most, left, width - 4);
  options.bars.forEach((bar, k) => {
    const top = k * rowHeight;
    const name = options.whole
      ? bar.name
      : shorten(`${bar.name}   ${options.write(totals[k])}`, width);
    picture.append(svg("text", { x: 2, y: top + (options.whole ? 16 : 14) }, name));
    let from = 0;
    for (const [index, value] of bar.parts) {
      const share = options.whole ? value / (totals[k] || 1) : value;
      const wide = Math.max(x(from + share) - x(from), 0);
      picture.append(
        svg(
          "rect",
          {
            class: `fill ${colour(index)}`,
            x: x(from),
            y: top + (options.whole ? 2 : 20),
            width: wide,
            height: 18,
          },
          svg("title", {}, `${options.labels[index]}: ${options.write(value)}`),
        ),
      );
      from += share;
    }
  });
  if (!options.whole) {
    const marks = ticks(0, most, Math.max(2, Math.floor(width / 110)));
    picture.append(bottomAxis(marks, x, width, height, options.xName));
  }
  plot.append(picture);
}
