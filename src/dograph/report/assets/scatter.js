// The probe rows in the plane: a slider goes through the steps, and the points move.

function scatterChart(options) {
  const plot = el("div", { class: "plot", id: options.id });
  const state = { points: [], width: 0 };
  const place = (probe) => placePoints(plot, state, probe, options);
  drawWhenSeen(plot, 300, (width) => {
    state.width = width;
    makePoints(plot, state, options);
    place(options.current());
  });
  const legend = el(
    "div",
    { class: "legend" },
    options.labels.map((label, k) => key(label, k)),
  );
  const figure = frame(
    options.title,
    options.note,
    legend,
    plot,
    numbers(options.title, ["row", "source", options.kind, "x", "y"], () => options.rows()),
  );
  return { figure, move: place };
}

function makePoints(plot, state, options) {
  plot.replaceChildren();
  const size = Math.min(state.width, 460);
  state.size = size;
  const picture = svg("svg", {
    viewBox: `0 0 ${state.width} ${size + 22}`,
    height: size + 22,
    role: "img",
    "aria-label": `${options.title}; a table follows`,
  });
  state.frame = svg("rect", {
    x: 1,
    y: 1,
    width: state.width - 2,
    height: size - 2,
    fill: "none",
    class: "grid-line",
  });
  state.caption = svg("text", { x: state.width / 2, y: size + 16, "text-anchor": "middle" });
  picture.append(state.frame, svg("g", { class: "axis" }, state.caption));
  const count = options.current()[options.basis()][0].length;
  state.points = Array.from({ length: count }, () => svg("path", { class: "point" }));
  picture.append(...state.points);
  plot.append(picture);
}

// Both axes have one scale, so that distances can be read; each step fills the picture.
function placePoints(plot, state, probe, options) {
  if (!state.points.length) return;
  const [xs, ys] = probe[options.basis()];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const zoom = Math.min((state.width - 24) / (x1 - x0 || 1), (state.size - 24) / (y1 - y0 || 1));
  const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2];
  const kinds = options.kinds(probe);
  state.points.forEach((point, n) => {
    const kind = kinds[n];
    point.setAttribute("class", kind < 0 ? "point c7" : `point ${colour(kind)}`);
    point.setAttribute("d", kind < 0 ? SHAPES[0] : shape(kind));
    point.style.transform = `translate(${(state.width / 2 + (xs[n] - cx) * zoom).toFixed(1)}px, ${(state.size / 2 - (ys[n] - cy) * zoom).toFixed(1)}px)`;
  });
  const [first, second] = probe.explained[options.basis() === "own" ? 1 : 0];
  state.caption.textContent = `step ${probe.step}: the axes hold ${(100 * first).toFixed(1)} % and ${(100 * second).toFixed(1)} % of the variance`;
}
