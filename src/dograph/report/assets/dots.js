// Differences with intervals, one row each.

const ROW = 40; // pixels

function dotChart(chart) {
  const height = chart.rows.length * ROW + 44;
  const heads = ["", "value", "95 %", "95 % over text"];
  const line = ({ name, difference, over_text: overText }) =>
    [name, signed(difference.value), interval(difference.interval, signed), interval(overText, signed)];
  const table = numbers(chart.title, heads, () => chart.rows.map(line));
  return figure(chart, height, (width) => drawDots({ width, height }, chart), null, table).node;
}

function drawDots(box, chart) {
  const ends = (own) => (own ? [own.low, own.high] : []);
  const values = ({ difference, over_text: overText }) =>
    [difference.value, ...ends(difference.interval), ...ends(overText)];
  const [least, most] = bounds([0, ...chart.rows.flatMap(values)]);
  const margin = (most - least) * 0.06 || Math.abs(most) * 0.05 || 1;
  const range = [least - margin, most + margin];
  const x = scale(...range, 8, box.width - 8);
  const upright = (kind, value) =>
    svg("line", { class: kind, x1: x(value), x2: x(value), y1: 0, y2: box.height - 34 });
  const marks = widthTicks(...range, box.width);
  const picture = canvas(box, `${chart.title}: ${chart.rows.length} rows; a table follows`);
  picture.append(
    ...marks.map((value) => upright("grid-line", value)),
    bottomAxis(marks, x, box, "nats"),
    upright("zero", 0),
  );
  const letters = Math.floor((box.width - 16) / 7.2); // that fit above a row
  chart.rows.forEach((row, k) => {
    const y = k * ROW + 27;
    const across = (kind, own) =>
      own && svg("line", { class: kind, x1: x(own.low), x2: x(own.high), y1: y, y2: y });
    const { value, interval: overSeeds } = row.difference;
    const label = `${row.name}   ${signed(value)} ${interval(overSeeds, signed)}`;
    const shown = label.length > letters ? `${label.slice(0, letters - 1)}…` : label;
    const group = svg(
      "g",
      { class: `over ${colour(row.index)}` },
      svg("text", { x: 8, y: y - 11 }, shown),
      across("whisker thin", row.over_text),
      across("whisker", overSeeds),
      marker(row.index, `translate(${x(value)},${y}) scale(1.3)`),
    );
    picture.append(group);
  });
  return picture;
}
