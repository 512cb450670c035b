// The domain graph: discs are shares, rings are weights, lines are agreement; a click tells of a domain.

const NODE_BASE = 0.06;
const NODE_REACH = 0.34;
const radius = (share) => NODE_BASE + NODE_REACH * Math.sqrt(Math.max(share, 0));
const GRAPH_NOTE =
  "disc: share of the samples; ring: weight (wider than the disc: weighed up); solid line: mean " +
  "gradients agree, dashed: they oppose each other, thickness: |cosine|; distances are those " +
  "between mean gradients, as far as a plane can show. ";

// A domain has this name wherever it is spoken of; what its number means is `numbering`.
const domainName = (number) => `domain ${number}`;

function graphChart(numbering, graphAt, choose) {
  const plot = el("div", { class: "plot", id: "graph" });
  let width = 0;
  const draw = () => width && drawGraph(plot, width, graphAt(), choose);
  drawWhenSeen(plot, 320, (now) => {
    width = now;
    draw();
  });
  const nodes = () =>
    graphAt().nodes.map((node) => [
      domainName(node.domain),
      ...[node.share, node.weight, node.norm].map((value) => number(value)),
      made(node),
    ]);
  const pairs = () =>
    graphAt().edges.map((edge) => [
      `${edge.first} - ${edge.second}`,
      signed(edge.cosine, 3),
      number(edge.mmd_squared, 3),
    ]);
  const heads = ["domain", "share", "weight", "mean gradient norm", "sources"];
  const here = numbering ? `Here ${numbering}. ` : "";
  const note = `${GRAPH_NOTE}${here}Choose a domain to read of it.`;
  const figure = frame(
    { title: "Domain graph", note },
    plot,
    numbers("the domain graph", heads, nodes, "Numbers of the domains"),
    numbers("pairs of domains", ["pair", "cosine", "MMD²"], pairs, "Numbers of the pairs"),
  );
  return { figure, draw };
}

// Sources of a domain with their number of samples and their share, the largest first.
function sourcesOf(node) {
  return Object.entries(node.sources)
    .sort((a, b) => b[1] - a[1])
    .map(([name, count]) => [name, count, `${((100 * count) / (node.samples || 1)).toFixed(0)} %`]);
}

function made(node) {
  return sourcesOf(node)
    .map(([name, , share]) => `${name} ${share}`)
    .join(", ");
}

function drawGraph(plot, width, graph, choose) {
  const focused = plot.contains(document.activeElement);
  const reach = graph.nodes.map((node) => radius(Math.max(node.share, node.weight || 0)) + 0.04);
  const edge = (sign, axis) =>
    Math.max(...graph.nodes.map((node, k) => sign * node[axis] + reach[k]), 0.1);
  const [left, right, up, down] = [edge(-1, "x"), edge(1, "x"), edge(1, "y"), edge(-1, "y")];
  const zoom = Math.min(width / (left + right), Math.min(width, 460) / (up + down), 260);
  const height = Math.max((up + down) * zoom, 160);
  const spare = (width - (left + right) * zoom) / 2;
  const x = (node) => spare + (node.x + left) * zoom;
  const y = (node) => height / 2 + ((up - down) / 2 - node.y) * zoom;
  const label = `domain graph after step ${graph.step}`;
  const picture = canvas({ width, height }, label, { role: "group" });
  const of = new Map(graph.nodes.map((node) => [node.domain, node]));
  for (const pair of graph.edges) {
    const [first, second] = [of.get(pair.first), of.get(pair.second)];
    picture.append(
      svg("line", {
        class: pair.cosine > 0 ? "edge" : "edge against",
        x1: x(first),
        y1: y(first),
        x2: x(second),
        y2: y(second),
        "stroke-width": (0.5 + 6 * Math.abs(pair.cosine)).toFixed(2),
      }),
    );
  }
  picture.append(...graph.nodes.map((node) => drawNode(node, x(node), y(node), zoom, choose)));
  plot.replaceChildren(picture);
  if (focused) picture.querySelector('[aria-pressed="true"]')?.focus();
}

function drawNode(node, x, y, zoom, choose) {
  const weight = node.weight === null ? node.share : node.weight;
  const larger = Math.max(radius(node.share), radius(weight)) * zoom;
  const pressed = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(node.domain);
  };
  const figures = `share ${number(node.share, 3)}, weight ${number(weight, 3)}`;
  return svg(
    "g",
    {
      class: `node ${colour(node.domain)}`,
      transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
      role: "button",
      tabindex: "0",
      "data-domain": node.domain,
      "aria-pressed": String(state.domain === node.domain),
      click: () => choose(node.domain),
      keydown: pressed,
      "aria-label": `${domainName(node.domain)}: ${figures}; ${made(node)}`,
    },
    svg("circle", { class: "halo", r: larger + 5 }),
    svg("circle", { class: "share", r: radius(node.share) * zoom }),
    svg("circle", { class: "weight", r: radius(weight) * zoom }),
    svg("text", {}, node.domain),
  );
}
