// The probe rows in the plane: a slider goes through the steps, and the points move.

function scatterChart(chart, own, probeAt) {
  const plot = el("div", { class: "plot", id: chart.id });
  const drawn = { points: [] };
  const move = () => placePoints(drawn, probeAt(), chart.by_source ? own.source_N : null);
  drawWhenSeen(plot, 300, (width) => {
    makePoints(plot, drawn, width, chart.title, probeAt());
    move();
  });
  const rows = () => {
    const probe = probeAt();
    const [xs, ys] = probe[state.basis];
    const group = (n) => (probe.label[n] < 0 ? "" : String(probe.label[n]));
    const source = (n) => own.sources[own.source_N[n]];
    return xs.map((x, n) => [String(n), source(n), group(n), number(x), number(ys[n])]);
  };
  const table = numbers(chart.title, ["row", "source", chart.group, "x", "y"], rows);
  return { figure: frame(chart, keys(chart.labels), plot, table), move };
}

function makePoints(plot, drawn, width, title, probe) {
  const size = Math.min(width, 460);
  Object.assign(drawn, { width, size });
  const picture = canvas({ width, height: size + 22 }, `${title}; a table follows`);
  const edge = { x: 1, y: 1, width: width - 2, height: size - 2 };
  drawn.caption = svg("text", { x: width / 2, y: size + 16, "text-anchor": "middle" });
  drawn.points = probe.label.map(() => svg("path", { class: "point" }));
  picture.append(
    svg("rect", { ...edge, fill: "none", class: "grid-line" }),
    svg("g", { class: "axis" }, drawn.caption),
    ...drawn.points,
  );
  plot.replaceChildren(picture);
}

// Both axes have one scale, so that distances can be read; each step fills the picture.
function placePoints({ points, width, size, caption }, probe, source_N) {
  if (!points.length) return;
  const [xs, ys] = probe[state.basis];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const zoom = Math.min((width - 24) / (x1 - x0 || 1), (size - 24) / (y1 - y0 || 1));
  const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2];
  points.forEach((point, n) => {
    const kind = (source_N || probe.label)[n];
    point.setAttribute("class", kind < 0 ? "point c7" : `point ${colour(kind)}`);
    point.setAttribute("d", kind < 0 ? SHAPES[0] : shape(kind));
    const [x, y] = [width / 2 + (xs[n] - cx) * zoom, size / 2 - (ys[n] - cy) * zoom];
    point.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
  });
  const [first, second] = probe.explained[state.basis === "own" ? 1 : 0].map((share) =>
    (100 * share).toFixed(1),
  );
  caption.textContent = `step ${probe.step}: the axes hold ${first} % and ${second} % of the variance`;
}
