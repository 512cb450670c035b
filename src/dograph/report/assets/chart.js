// What all charts share: a frame with caption and numbers, axes, and drawing only what is seen.

const waiting = new Map();
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && entry.target.drawnWidth === undefined) drawNow(entry.target);
    }
  },
  { rootMargin: "300px" },
);
const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const node = entry.target;
    if (node.drawnWidth !== undefined && Math.abs(node.drawnWidth - node.clientWidth) > 1)
      drawNow(node);
  }
});

function drawNow(node) {
  const draw = waiting.get(node);
  if (!draw || !node.clientWidth) return;
  node.drawnWidth = node.clientWidth;
  draw(node.clientWidth);
  const root = document.documentElement.dataset; // read by benchmarks/page.py
  root.firstChart ||= String(performance.now());
}

// What nobody has scrolled to is drawn when there is nothing else to do, so that it can be found,
// reached by keys and read aloud.
const whenIdle = window.requestIdleCallback || ((work) => setTimeout(work, 50));

function drawRest() {
  const left = [...waiting.keys()].find(
    (node) => node.drawnWidth === undefined && node.clientWidth,
  );
  if (!left) return;
  whenIdle(() => {
    if (left.drawnWidth === undefined) drawNow(left);
    drawRest();
  });
}

function drawWhenSeen(node, height, draw) {
  node.style.minHeight = `${height}px`;
  waiting.set(node, draw);
  watcher.observe(node);
  sizes.observe(node);
}

function forgetCharts() {
  for (const node of waiting.keys()) {
    watcher.unobserve(node);
    sizes.unobserve(node);
  }
  waiting.clear();
}

addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));

function frame({ title, note }, ...parts) {
  const caption = el("figcaption", {}, title, note ? el("span", {}, note) : null);
  return el("figure", { class: "chart" }, caption, parts);
}

function canvas({ width, height }, label, more = {}) {
  const box = { viewBox: `0 0 ${width} ${height}`, height };
  return svg("svg", { ...box, role: "img", ...more, "aria-label": label });
}

// Round numbers that cover low to high.
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(wanted, 1);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((times) => times * unit >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1)
    found.push(k * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    found.push(10 ** power);
  }
  const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const every = Math.max(1, Math.ceil(inside.length / 6));
  const kept = inside.filter((_, k) => k % every === 0);
  return kept.length > 1 ? kept : [low, high];
}

function scale(low, high, from, to, log = false) {
  const f = log ? Math.log10 : (value) => value;
  const [a, b] = [f(low), f(high)];
  if (a === b) return () => (from + to) / 2;
  const span = b - a;
  return (value) => from + ((f(value) - a) / span) * (to - from);
}

// Tick labels with as many digits as tell them apart.
function tickText(values) {
  const gap = values.length > 1 ? Math.abs(values[1] - values[0]) : Math.abs(values[0]) || 1;
  const largest = Math.max(...values.map(Math.abs), gap);
  if (largest >= 1e6 || largest < 1e-3)
    return (value) => (value ? value.toExponential(1).replace("e+", "e").replace(".0e", "e") : "0");
  if (largest >= 1e4) return (value) => (value ? `${+(value / 1000).toPrecision(6)}k` : "0");
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(gap) + 1e-9)));
  return (value) => value.toFixed(digits);
}

// Lines and labels of both axes; returns where things go.
function axes(picture, box, xs, ys, chart) {
  const layer = svg("g", { class: "axis", "aria-hidden": "true" });
  const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
  const yMarks = chart.log_y ? logTicks(...ys) : ticks(...ys, box.height < 180 ? 3 : 5);
  const yText = chart.log_y ? (value) => number(value, 2) : tickText(yMarks);
  const left = Math.max(...yMarks.map((value) => yText(value).length)) * 7.6 + 12;
  const x = scale(...xs, left + 6, box.width - 12, chart.log_x);
  const y = scale(...ys, box.height - 38, 8, chart.log_y);
  for (const value of yMarks) {
    const line = { class: "grid-line", x1: left, x2: box.width - 4, y1: y(value), y2: y(value) };
    layer.append(svg("line", line), text(left - 6, y(value) + 4, "end", yText(value)));
  }
  const wanted = Math.max(2, Math.floor(box.width / 110));
  const rough = chart.log_x ? logTicks(...xs) : ticks(...xs, wanted);
  // Between two steps, or two numbers of domains, there is nothing.
  const whole = rough.filter((value) => Number.isInteger(value));
  const xMarks = whole.length ? whole : rough;
  const xText = chart.log_x ? (value) => number(value, 1) : tickText(xMarks);
  for (const value of xMarks) {
    const near = Math.min(Math.max(x(value), left + 4), box.width - 22);
    layer.append(text(near, box.height - 20, "middle", xText(value)));
  }
  layer.append(text((left + box.width) / 2, box.height - 3, "middle", chart.x_name));
  picture.append(layer);
  return { x, y, left };
}
