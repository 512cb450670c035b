// Figures with their intervals, one below the other; and bars made of parts.

const ROW = 40; // pixels of a figure

function dotChart(chart) {
  const plot = el("div", { class: "plot" });
  const height = chart.rows.length * ROW + 44;
  const write = (value) => WRITE[chart.write](value, chart.digits);
  drawWhenSeen(plot, height, (width) => drawDots(plot, { width, height }, chart, write));
  const pale = chart.rows.some((row) => row.text);
  const overText = ({ text }) => (text ? `[${write(text[0])}, ${write(text[1])}]` : "");
  return frame(
    chart,
    plot,
    numbers(chart.title, ["", "value", "95 %", ...(pale ? ["95 % over text"] : [])], () =>
      chart.rows.map((row) => [
        row.name,
        write(row.value),
        interval(row, write),
        ...(pale ? [overText(row)] : []),
      ]),
    ),
  );
}

function drawDots(plot, box, chart, write) {
  const of = (row) => [row.value, row.low, row.high, ...(row.text || [])];
  const ends = [...chart.rows.flatMap(of), chart.chance, chart.reference].filter(isKnown);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  const picture = canvas(box, `${chart.title}: ${chart.rows.length} rows; a table follows`);
  const x = scale(low - pad, high + pad, 8, box.width - 8);
  const bottom = box.height - 34;
  const marks = ticks(low - pad, high + pad, Math.max(2, Math.floor(box.width / 110)));
  for (const value of marks) picture.append(upright("grid-line", x(value), 0, bottom));
  picture.append(bottomAxis(marks, x, box, chart.x_name));
  if (isKnown(chart.reference)) picture.append(upright("zero", x(chart.reference), 0, bottom));
  chart.rows.forEach((row, k) => {
    const y = k * ROW + 27;
    const across = (kind, from, to) => svg("line", { class: kind, x1: x(from), x2: x(to), y1: y, y2: y });
    const label = `${row.name}   ${write(row.value)} ${interval(row, write)}`;
    const at = `translate(${x(row.value)},${y}) scale(1.3)`;
    picture.append(
      svg(
        "g",
        { class: `over ${colour(row.index)}` },
        svg("text", { x: 8, y: y - 11 }, shorten(label, box.width)),
        row.text ? across("whisker thin", ...row.text) : null,
        isKnown(row.low) ? across("whisker", row.low, row.high) : null,
        isKnown(chart.chance) ? upright("zero", x(chart.chance), y - 8, y + 8) : null,
        svg("path", { class: "dot", d: shape(row.index), transform: at }),
      ),
    );
  });
  plot.replaceChildren(picture);
}

function upright(kind, x, y1, y2) {
  return svg("line", { class: kind, x1: x, x2: x, y1, y2 });
}

function bottomAxis(marks, x, { width, height }, name) {
  const write = tickText(marks);
  const layer = svg("g", { class: "axis", "aria-hidden": "true" });
  const text = (at, y, words) => svg("text", { x: at, y, "text-anchor": "middle" }, words);
  for (const value of marks)
    layer.append(text(Math.min(Math.max(x(value), 14), width - 18), height - 19, write(value)));
  layer.append(text(width / 2, height - 3, name || ""));
  return layer;
}

function shorten(text, width) {
  const most = Math.floor((width - 16) / 7.2);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function barChart(chart) {
  const plot = el("div", { class: "plot" });
  const rowHeight = chart.whole ? 26 : 46;
  const height = chart.bars.length * rowHeight + (chart.whole ? 6 : 40);
  const write = (value) => (chart.unit ? `${number(value, 2)} ${chart.unit}` : number(value));
  drawWhenSeen(plot, height, (width) => drawBars(plot, { width, height }, rowHeight, chart, write));
  return frame(
    chart,
    chart.whole ? null : keys(chart.labels),
    plot,
    numbers(chart.title, ["", ...chart.labels], () =>
      chart.bars.map(([name, parts]) => {
        const of = new Map(parts);
        return [name, ...chart.labels.map((_, k) => (of.has(k) ? write(of.get(k)) : ""))];
      }),
    ),
  );
}

// Short names stand beside their bar, long ones above it.
function drawBars(plot, box, rowHeight, chart, write) {
  const totals = chart.bars.map(([, parts]) => parts.reduce((sum, [, value]) => sum + value, 0));
  const most = chart.whole ? 1 : Math.max(...totals, 1e-12);
  const picture = canvas(box, `${chart.title}: ${chart.bars.length} bars; a table follows`);
  const x = scale(0, most, chart.whole ? 88 : 2, box.width - 4);
  const [nameAt, barAt] = chart.whole ? [16, 2] : [14, 20];
  chart.bars.forEach(([name, parts], k) => {
    const top = k * rowHeight;
    const label = chart.whole ? name : shorten(`${name}   ${write(totals[k])}`, box.width);
    picture.append(svg("text", { x: 2, y: top + nameAt }, label));
    let from = 0;
    for (const [index, value] of parts) {
      const share = chart.whole ? value / (totals[k] || 1) : value;
      const size = { x: x(from), y: top + barAt, width: Math.max(x(from + share) - x(from), 0) };
      const title = svg("title", {}, `${chart.labels[index]}: ${write(value)}`);
      picture.append(svg("rect", { class: `fill ${colour(index)}`, ...size, height: 18 }, title));
      from += share;
    }
  });
  if (!chart.whole) {
    const marks = ticks(0, most, Math.max(2, Math.floor(box.width / 110)));
    picture.append(bottomAxis(marks, x, box, chart.unit));
  }
  plot.replaceChildren(picture);
}
