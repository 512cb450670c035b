// What all charts share: a frame with caption and numbers, axes, and drawing at their width.

// Also called when a chart is first shown, perhaps inside something that was folded. In the next
// frame, because drawing may change a height, which the observer would report at once.
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries)
    if (Math.abs((target.drawnWidth || 0) - target.clientWidth) > 1)
      requestAnimationFrame(() => drawNow(target));
});

function drawNow(plot) {
  if (!plot.clientWidth) return; // not shown
  plot.drawnWidth = plot.clientWidth;
  plot.replaceChildren(...[plot.draw(plot.clientWidth)].flat());
  document.documentElement.dataset.firstChart ||= String(performance.now()); // benchmarks/page.py
}

// A chart: `draw` makes its picture for a width, `parts` are the legend above and tables below it.
function figure({ title, note, id }, height, draw, above, ...below) {
  const plot = el("div", { class: "plot", id });
  plot.style.minHeight = `${height}px`;
  plot.draw = draw;
  resized.observe(plot);
  const caption = el("figcaption", {}, named(title), note ? el("span", {}, note) : null);
  const node = el("figure", { class: "chart" }, caption, above, plot, below);
  return { node, plot };
}

function canvas({ width, height }, label, more = {}) {
  const box = { viewBox: `0 0 ${width} ${height}`, height };
  return svg("svg", { ...box, role: "img", ...more, "aria-label": label });
}

// The smallest and largest of any number of values.
function bounds(values) {
  const wider = ([low, high], value) => [Math.min(low, value), Math.max(high, value)];
  return values.reduce(wider, [Infinity, -Infinity]);
}

// Round numbers that cover low to high.
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(wanted, 1);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((times) => times * unit >= rough);
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1)
    marks.push(k * step);
  return marks;
}

function scale(low, high, from, to) {
  if (low === high) return () => (from + to) / 2;
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

// Tick labels with as many digits as make them different.
function tickText(values) {
  const gap = values.length > 1 ? Math.abs(values[1] - values[0]) : Math.abs(values[0]) || 1;
  const largest = Math.max(...values.map(Math.abs), gap);
  if (largest >= 1e6 || largest < 1e-3)
    return (value) => (value ? value.toExponential(1).replace("e+", "e").replace(".0e", "e") : "0");
  if (largest >= 1e4) return (value) => (value ? `${+(value / 1000).toPrecision(6)}k` : "0");
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(gap) + 1e-9)));
  return (value) => value.toFixed(digits);
}

const axisText = (x, y, anchor, text) => svg("text", { x, y, "text-anchor": anchor }, text);
const axisLayer = (...parts) => svg("g", { class: "axis", "aria-hidden": "true" }, parts);
const widthTicks = (low, high, width) => ticks(low, high, Math.max(2, Math.floor(width / 110)));

// Labels and name of a horizontal axis.
function bottomAxis(marks, x, { width, height, left = 0 }, name) {
  const write = tickText(marks);
  const at = (value) => Math.min(Math.max(x(value), left + 12), width - 20);
  return axisLayer(
    marks.map((value) => axisText(at(value), height - 20, "middle", write(value))),
    axisText((left + width) / 2, height - 3, "middle", name || ""),
  );
}

// Lines and labels of both axes, and the scales.
function axes(box, xs, ys) {
  const yMarks = ticks(...ys, 5);
  const yText = tickText(yMarks);
  const left = Math.max(...yMarks.map((value) => yText(value).length)) * 7.6 + 12;
  const x = scale(...xs, left + 6, box.width - 12);
  const y = scale(...ys, box.height - 38, 8);
  const levels = yMarks.map((value) => [
    svg("line", { class: "grid-line", x1: left, x2: box.width - 4, y1: y(value), y2: y(value) }),
    axisText(left - 6, y(value) + 4, "end", yText(value)),
  ]);
  const rough = widthTicks(...xs, box.width);
  const whole = rough.filter(Number.isInteger); // steps are whole
  const bottom = bottomAxis(whole.length ? whole : rough, x, { ...box, left }, "step");
  return { layers: [axisLayer(levels), bottom], x, y, left };
}
