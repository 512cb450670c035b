// The domain graph: discs are shares, rings are weights, lines are agreement; a click tells of a domain.

const NODE_BASE = 0.06;
const NODE_REACH = 0.34;
const radius = (share) => NODE_BASE + NODE_REACH * Math.sqrt(Math.max(share, 0));

// A domain has this name wherever it is spoken of; what its number means is `numbering`.
const domainName = (number) => `domain ${number}`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function graphChart(options) {
  const plot = el("div", { class: "plot", id: options.id });
  const current = { width: 0 };
  const draw = () => drawGraph(plot, current.width, options);
  drawWhenSeen(plot, 320, (width) => {
    current.width = width;
    draw();
  });
  const figure = frame(
    "Domain graph",
    "disc: share of the samples; ring: weight (wider than the disc: weighed up); solid line: mean gradients agree, dashed: they oppose each other, thickness: |cosine|; distances are those between mean gradients, as far as a plane can show. " +
      (options.note ? `Here ${options.note}. ` : "") +
      "Choose a domain to read of it.",
    plot,
    numbers(
      "the domain graph",
      ["domain", "share", "weight", "mean gradient norm", "sources"],
      () =>
        options
          .current()
          .nodes.map((node) => [
            domainName(node.domain),
            number(node.share),
            number(node.weight),
            number(node.norm),
            made(node),
          ]),
      "Numbers of the domains",
    ),
    numbers(
      "pairs of domains",
      ["pair", "cosine", "MMD²"],
      () =>
        options
          .current()
          .edges.map((edge) => [
            `${edge.first} - ${edge.second}`,
            signed(edge.cosine, 3),
            number(edge.mmd_squared, 3),
          ]),
      "Numbers of the pairs",
    ),
  );
  return { figure, redraw: draw };
}

function made(node) {
  const total = node.samples || 1;
  return Object.entries(node.sources)
    .sort((a, b) => b[1] - a[1])
    .map(([name, count]) => `${name} ${((100 * count) / total).toFixed(0)} %`)
    .join(", ");
}

function drawGraph(plot, width, options) {
  if (!width) return;
  const focused = plot.contains(document.activeElement);
  plot.replaceChildren();
  const graph = options.current();
  const reach = graph.nodes.map((node) => radius(Math.max(node.share, node.weight || 0)) + 0.04);
  const edge = (sign, axis) =>
    Math.max(...graph.nodes.map((node, k) => sign * node[axis] + reach[k]), 0.1);
  const [left, right, up, down] = [edge(-1, "x"), edge(1, "x"), edge(1, "y"), edge(-1, "y")];
  const zoom = Math.min(width / (left + right), Math.min(width, 460) / (up + down), 260);
  const height = Math.max((up + down) * zoom, 160);
  const spare = (width - (left + right) * zoom) / 2;
  const x = (node) => spare + (node.x + left) * zoom;
  const y = (node) => height / 2 + ((up - down) / 2 - node.y) * zoom;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "group",
    "aria-label": `domain graph after step ${graph.step}`,
  });
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
  for (const node of graph.nodes) picture.append(drawNode(node, x(node), y(node), zoom, options));
  plot.append(picture);
  if (focused) picture.querySelector('[aria-pressed="true"]')?.focus();
}

function drawNode(node, x, y, zoom, options) {
  const weight = node.weight === null ? node.share : node.weight;
  const larger = Math.max(radius(node.share), radius(weight)) * zoom;
  const choose = () => options.choose(node.domain);
  const keys = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  };
  return svg(
    "g",
    {
      class: `node ${colour(node.domain)}`,
      transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
      role: "button",
      tabindex: "0",
      "data-domain": node.domain,
      "aria-pressed": String(options.chosen() === node.domain),
      click: choose,
      keydown: keys,
      "aria-label": `${domainName(node.domain)}: share ${number(node.share, 3)}, weight ${number(weight, 3)}; ${made(node)}`,
    },
    svg("circle", { class: "halo", r: larger + 5 }),
    svg("circle", { class: "share", r: radius(node.share) * zoom }),
    svg("circle", { class: "weight", r: radius(weight) * zoom }),
    svg("text", {}, node.domain),
  );
}

// All that is known of one domain, beside the graph.
function domainPanel(data, run, graph, probe, domain) {
  const node = graph && graph.nodes.find((one) => one.domain === domain);
  const panel = el(
    "div",
    { class: "panel", id: "domain-panel", "aria-live": "polite" },
    el("h3", {}, capital(domainName(domain))),
  );
  if (!run.domains.has_identity) panel.append(el("p", { class: "soft" }, rankNote(graph, domain)));
  if (node) panel.append(...nodeFacts(node, graph.step));
  const [title, examples, none] = run.domains.has_identity
    ? nearTexts(probe, domain)
    : batchTexts(run, graph, domain);
  panel.append(el("h4", {}, title));
  if (!examples.length) panel.append(el("p", { class: "soft" }, none));
  for (const example of examples) panel.append(sample(data, example));
  const drift = run.domains.drift[String(domain)] || [];
  if (drift.length) panel.append(...driftFacts(drift));
  return panel;
}

function rankNote(graph, domain) {
  const name = domainName(domain);
  return `Its number is a rank by weight in the batch of step ${graph.step}, 0 the heaviest; ${name} of another step is another domain.`;
}

function nearTexts(probe, domain) {
  const title = `Texts nearest its centre${probe ? ` (probe after step ${probe.step})` : ""}`;
  const found = (probe && probe.examples[String(domain)]) || [];
  return [title, found, "No held-out row is in this domain, or none were probed."];
}

// A domain of one batch is the samples that were in it.
function batchTexts(run, graph, domain) {
  const steps = run.domains.graphs.filter((one) => one.examples).map((one) => one.step);
  const found = (graph.examples && graph.examples[String(domain)]) || [];
  const none = steps.length
    ? `Samples are on this page for the graphs after steps ${steps.join(", ")}.`
    : "Its samples are not at hand.";
  return [`Samples of step ${graph.step} in it`, found, none];
}

function nodeFacts(node, step) {
  const figures = [
    `share ${number(node.share, 3)}`,
    `weight ${number(node.weight, 3)}`,
    `norm of the mean gradient ${number(node.norm, 3)}`,
    `spread ${number(node.spread, 3)}`,
  ];
  const share = (count) => `${((100 * count) / (node.samples || 1)).toFixed(0)} %`;
  const sources = Object.entries(node.sources).sort((a, b) => b[1] - a[1]);
  return [
    el("p", {}, `After step ${step}: ${figures.join(", ")}.`),
    el("h4", {}, "Sources"),
    table(
      ["source", "samples", "of the domain"],
      sources.map(([name, count]) => [named(name), number(count), share(count)]),
      { name: "sources of the domain" },
    ),
  ];
}

function driftFacts(drift) {
  const rows = drift.map((row) => [
    number(row.step),
    row.rows,
    number(row.kept, 2),
    number(row.cosine, 2),
  ]);
  const note =
    "kept: rows in both this probe and the one before, over rows in either; " +
    "cosine: of its centre to that of the last probe";
  return [
    el("h4", {}, "Drift"),
    el("p", { class: "soft" }, note),
    table(["step", "rows", "kept", "cosine"], rows, { name: "drift of the domain" }),
  ];
}

function sample(data, example) {
  const text = example.text === null ? null : data.texts[example.text];
  return el(
    "blockquote",
    { class: "sample" },
    el(
      "p",
      { dir: "auto", tabindex: "0" },
      text ? text.text + (text.cut ? " …" : "") : "(text not at hand)",
    ),
    el("footer", {}, named(example.source), `, document ${example.document}`),
  );
}
