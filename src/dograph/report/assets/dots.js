// Values with intervals, one row each.

const ROW = 40; // pixels

function dotChart(chart) {
  const height = chart.rows.length * ROW + 44;
  const write = formatOf(chart);
  const overText = chart.rows.some((row) => row.over_text);
  const heads = ["", "value", "95 %", ...(overText ? ["95 % over text"] : [])];
  const line = (row) => [
    row.name,
    write(row.value),
    interval(row.low, row.high, write),
    ...(overText ? [interval(...(row.over_text || []), write)] : []),
  ];
  const draw = (width) => drawDots({ width, height }, chart, write);
  const table = numbers(chart.title, heads, () => chart.rows.map(line));
  return figure(chart, height, draw, null, table).node;
}

function drawDots(box, chart, write) {
  const values = (row) => [row.value, row.low, row.high, ...(row.over_text || [])];
  const all = [...chart.rows.flatMap(values), chart.chance, chart.reference].filter(isKnown);
  const [least, most] = bounds(all);
  const margin = (most - least) * 0.06 || Math.abs(most) * 0.05 || 1;
  const range = [least - margin, most + margin];
  const x = scale(...range, 8, box.width - 8);
  const upright = (kind, value, y1 = 0, y2 = box.height - 34) =>
    svg("line", { class: kind, x1: x(value), x2: x(value), y1, y2 });
  const marks = widthTicks(...range, box.width);
  const picture = canvas(box, `${chart.title}: ${chart.rows.length} rows; a table follows`);
  picture.append(
    ...marks.map((value) => upright("grid-line", value)),
    bottomAxis(marks, x, box, chart.x_name),
    ...(isKnown(chart.reference) ? [upright("zero", chart.reference)] : []),
  );
  chart.rows.forEach((row, k) => {
    const y = k * ROW + 27;
    const across = (kind, from, to) =>
      svg("line", { class: kind, x1: x(from), x2: x(to), y1: y, y2: y });
    const label = `${row.name}   ${write(row.value)} ${interval(row.low, row.high, write)}`;
    const group = svg(
      "g",
      { class: `over ${colour(row.index)}` },
      svg("text", { x: 8, y: y - 11 }, shorten(label, box.width)),
      row.over_text ? across("whisker thin", ...row.over_text) : null,
      isKnown(row.low) ? across("whisker", row.low, row.high) : null,
      isKnown(chart.chance) ? upright("zero", chart.chance, y - 8, y + 8) : null,
      marker(row.index, `translate(${x(row.value)},${y}) scale(1.3)`),
    );
    picture.append(group);
  });
  return picture;
}

function shorten(text, width) {
  const most = Math.floor((width - 16) / 7.2);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
