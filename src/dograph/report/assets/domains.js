// The domains of a run: probes in two dimensions, and the domain graph.

const ABSENT = {
  runs: "No run on this page has domains: they need mixer.name=dograph. For the domains of any model: dograph inspect.",
  probes: "No picture of gradients: this run has no probes (probe.rows=0, or none was due yet).",
  graphs: "No domain graph yet: one is written at every validation once there are domains.",
};
const GRAPH_NOTE =
  "disc: share of samples; ring: weight (larger than the disc: weighted up); solid line: mean " +
  "gradients point in similar directions, dashed: in opposite ones, thickness: |cosine|; " +
  "distances approximate those between mean gradients. ";

function domains(runs) {
  if (!runs.length) return [soft(ABSENT.runs)];
  const [name, own] = runs.find(([run]) => run === state.run) || runs[0];
  const chosen = (run) => {
    Object.assign(state, { run, probe: null, graph: null });
    redraw("domains");
  };
  const names = runs.map(([run]) => [run, run]);
  const menu = el("div", { class: "controls" }, choice("Run", "domain-run", names, name, chosen));
  return [
    runs.length > 1 ? menu : [],
    own.notes.map(soft),
    own.probes.length ? probePart(own) : soft(ABSENT.probes),
    own.graphs.length ? graphPart(own) : soft(ABSENT.graphs),
    el("div", { class: "grid" }, own.lines.map(lineChart)),
    el("div", {}, own.described.map(item)),
  ];
}

// The probe or graph that the reader selected; at first the last one.
const selected = (name, rows) => rows[Math.min(state[name] ?? rows.length - 1, rows.length - 1)];

// A heading, a slider that selects a step, and content that is then drawn again.
function stepPart(title, name, rows, content, draw) {
  const [id, now] = [`${name}-step`, selected(name, rows)];
  const output = el("output", { for: id }, ` step ${number(now.step)}`);
  const range = { type: "range", min: 0, max: rows.length - 1, step: 1, value: rows.indexOf(now) };
  const input = (event) => {
    state[name] = Number(event.target.value);
    const { step } = selected(name, rows);
    output.textContent = ` step ${number(step)}`;
    event.target.setAttribute("aria-valuetext", `step ${step}`);
    draw();
  };
  const slider = el("input", { id, ...range, input, "aria-valuetext": `step ${now.step}` });
  const label = el("span", {}, { probe: "Probe after", graph: "Graph after" }[name], output);
  const controls = el("div", { class: "controls" }, el("label", { class: "slider", for: id }, label, slider));
  return el("div", {}, el("h3", {}, title), controls, el("div", { class: "grid" }, content));
}

function probePart(own) {
  const probeAt = () => selected("probe", own.probes);
  const charts = own.scatters.map((chart) => scatterChart(chart, own, probeAt));
  const draw = () => charts.forEach(({ plot }) => drawNow(plot));
  const nodes = charts.map(({ node }) => node);
  return stepPart("Gradients of held-out text", "probe", own.probes, nodes, draw);
}

// Both axes have the same scale, so that distances can be compared; each step fills the picture.
function scatterChart(chart, own, probeAt) {
  const draw = (width) => {
    const { step, place: [xs, ys], explained, label } = probeAt();
    const size = Math.min(width, 460);
    const [[x0, x1], [y0, y1]] = [bounds(xs), bounds(ys)];
    const zoom = Math.min((width - 24) / (x1 - x0 || 1), (size - 24) / (y1 - y0 || 1));
    const point = (kind, n) => {
      const x = width / 2 + (xs[n] - (x0 + x1) / 2) * zoom;
      const y = size / 2 - (ys[n] - (y0 + y1) / 2) * zoom;
      const look = { class: `point ${kind < 0 ? "c7" : colour(kind)}`, d: shape(Math.max(kind, 0)) };
      return svg("path", { ...look, transform: `translate(${x.toFixed(1)},${y.toFixed(1)})` });
    };
    const edge = { x: 1, y: 1, width: width - 2, height: size - 2 };
    const [first, second] = explained.map((share) => (100 * share).toFixed(1));
    const caption = `step ${step}: ${first} % and ${second} % of the variance`;
    const picture = canvas({ width, height: size + 22 }, `${chart.title}; a table follows`);
    picture.append(
      svg("rect", { ...edge, fill: "none", class: "grid-line" }),
      axisLayer(axisText(width / 2, size + 16, "middle", caption)),
      ...(chart.by_source ? own.source_N : label).map(point),
    );
    return picture;
  };
  const rows = () => {
    const { place: [xs, ys], label } = probeAt();
    const group = (n) => (label[n] < 0 ? "" : String(label[n]));
    const source = (n) => own.sources[own.source_N[n]];
    return xs.map((x, n) => [String(n), source(n), group(n), number(x), number(ys[n])]);
  };
  const table = numbers(chart.title, ["row", "source", chart.group, "x", "y"], rows);
  return figure(chart, 300, draw, legend(chart.labels), table);
}

function graphPart(own) {
  const graphAt = () => selected("graph", own.graphs);
  const numbering = own.numbering && `Domain ${own.numbering}.`;
  const tables = el("div", {});
  const showTables = () => tables.replaceChildren(...domainTables(graphAt()));
  const { node, plot } = figure(
    { title: "Domain graph", note: GRAPH_NOTE + numbering, id: "graph" },
    320,
    (width) => drawGraph(width, graphAt(), own.names),
    null,
    tables,
  );
  const draw = () => {
    drawNow(plot);
    showTables();
  };
  showTables();
  return stepPart("Domains and their similarity", "graph", own.graphs, node, draw);
}

// Everything about the domains of one graph.
function domainTables(graph) {
  const domain = (node) => [
    `domain ${node.domain}`,
    ...[node.share, node.weight, node.norm, node.spread].map((value) => number(value, 3)),
    sourceText(node),
  ];
  const pair = ({ first, second, cosine, mmd_squared: distance }) =>
    [`${first} - ${second}`, signed(cosine, 3), number(distance, 3)];
  const heads = ["domain", "share", "weight", "mean gradient norm", "spread", "sources"];
  const pairs = () => graph.edges.map(pair);
  return [
    table({ name: "domains", heads, rows: graph.nodes.map(domain), left: ["sources"] }),
    numbers("pairs of domains", ["pair", "cosine", "MMD²"], pairs, "Numbers of the pairs"),
  ];
}

// As node_radius in domains.py; of the larger of a node's two circles: share and weight.
const radius = (share) => 0.06 + 0.34 * Math.sqrt(Math.max(share, 0));
const largest = (node) => radius(Math.max(node.share, node.weight || 0));

// The sources of a domain with their shares of its samples, largest first.
const sourceText = (node) =>
  Object.entries(node.sources)
    .sort((a, b) => b[1] - a[1])
    .map(([name, count]) => `${name} ${((100 * count) / (node.samples || 1)).toFixed(0)} %`)
    .join(", ");

function drawGraph(width, graph, names) {
  const edge = (side, axis) =>
    Math.max(...graph.nodes.map((node) => side * node[axis] + largest(node) + 0.04), 0.1);
  const [left, right, up, down] = [edge(-1, "x"), edge(1, "x"), edge(1, "y"), edge(-1, "y")];
  const zoom = Math.min(width / (left + right), Math.min(width, 460) / (up + down), 260);
  const height = Math.max((up + down) * zoom, 160);
  const spare = (width - (left + right) * zoom) / 2;
  const x = (node) => spare + (node.x + left) * zoom;
  const y = (node) => height / 2 + ((up - down) / 2 - node.y) * zoom;
  const title = `domain graph after step ${graph.step}; a table follows`;
  const picture = canvas({ width, height }, title);
  const byName = new Map(graph.nodes.map((node) => [node.domain, node]));
  for (const { first, second, cosine } of graph.edges) {
    const [a, b] = [byName.get(first), byName.get(second)];
    const kind = cosine > 0 ? "edge" : "edge against";
    const ends = { x1: x(a), y1: y(a), x2: x(b), y2: y(b) };
    const width = 0.5 + 6 * Math.abs(cosine);
    picture.append(svg("line", { class: kind, ...ends, "stroke-width": width }));
  }
  const circle = (kind, share) => svg("circle", { class: kind, r: radius(share) * zoom });
  const draw = (node) =>
    svg(
      "g",
      { class: `node ${colour(node.domain)}`, transform: `translate(${x(node)},${y(node)})` },
      svg("title", {}, `domain ${node.domain}: ${names[node.domain] || sourceText(node)}`),
      circle("share", node.share),
      circle("weight", node.weight ?? node.share),
      svg("text", {}, node.domain),
    );
  const label = (node) => {
    const below = y(node) + largest(node) * zoom + 11;
    return svg("text", { class: "words", x: x(node), y: below }, names[node.domain]?.split(",")[0]);
  };
  picture.append(...graph.nodes.map(draw), ...graph.nodes.map(label)); // no disc covers a label
  return picture;
}

function exampleText({ source, document: index, text }) {
  const words = el("p", { dir: "auto", tabindex: "0" }, text);
  const from = el("footer", {}, named(source), `, document ${index}`);
  return el("blockquote", { class: "sample" }, words, from);
}
