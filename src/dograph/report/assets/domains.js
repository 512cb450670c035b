// How the model perceives the corpus: probes in the plane, the graph, what domains are made of.

function domains(data, body, state, again) {
  const known = data.runs.filter((run) => run.domains);
  if (!known.length) {
    body.append(
      el(
        "p",
        { class: "soft" },
        "No run here has domains: they come with mixer.name=dograph. What any model perceives: dograph inspect.",
      ),
    );
    return;
  }
  const run = known.find((one) => one.name === state.run) || known[0];
  const own = run.domains;
  if (known.length > 1) {
    body.append(
      el(
        "div",
        { class: "controls" },
        choice(
          "Run",
          "domain-run",
          known.map((one) => [one.name, one.name]),
          run.name,
          (value) => {
            state.run = value;
            state.probe = null;
            state.graph = null;
            again();
          },
        ),
      ),
    );
  }
  for (const note of own.notes) body.append(el("p", { class: "soft" }, named(note)));
  const probeAt = () =>
    own.probes[Math.min(state.probe ?? own.probes.length - 1, own.probes.length - 1)];
  if (own.probes.length) body.append(probePart(run, state, probeAt));
  else
    body.append(
      el(
        "p",
        { class: "soft" },
        "This run was not probed (probe.rows=0, or no probe is due yet), so there is no picture of its gradients.",
      ),
    );
  if (own.graphs.length) body.append(graphPart(data, run, state, probeAt));
  else
    body.append(
      el(
        "p",
        { class: "soft" },
        "No domain graph yet: it is written at every validation, from when domains are known.",
      ),
    );
  body.append(weightPart(run));
  if (own.graphs.length) body.append(compositionPart(run));
}

function stepSlider(label, id, steps, at, moved) {
  const output = el("output", { for: id }, ` step ${number(steps[at])}`);
  const input = el("input", {
    id,
    type: "range",
    min: 0,
    max: steps.length - 1,
    step: 1,
    value: at,
    "aria-valuetext": `step ${steps[at]}`,
  });
  input.addEventListener("input", () => {
    const k = Number(input.value);
    output.textContent = ` step ${number(steps[k])}`;
    input.setAttribute("aria-valuetext", `step ${steps[k]}`);
    moved(k);
  });
  return el("label", { class: "slider", for: id }, el("span", {}, label, output), input);
}

function probePart(run, state, probeAt) {
  const own = run.domains;
  const charts = probeCharts(own, state, probeAt);
  const move = () => charts.forEach((chart) => chart.move(probeAt()));
  const steps = own.probes.map((probe) => probe.step);
  const slider = stepSlider(
    "Probe after",
    "probe-step",
    steps,
    steps.indexOf(probeAt().step),
    (k) => {
      state.probe = k;
      move();
      state.tell();
    },
  );
  const bases = [
    ["last", "of the last probe, for all steps"],
    ["own", "of each probe itself"],
  ];
  const basis = choice("Axes", "probe-basis", bases, state.basis, (value) => {
    state.basis = value;
    move();
  });
  return el(
    "div",
    {},
    el("h3", {}, "Gradients in the plane"),
    el("div", { class: "controls" }, slider, basis),
    el(
      "div",
      { class: "grid" },
      charts.map((chart) => chart.figure),
    ),
  );
}

function probeCharts(own, state, probeAt) {
  const most = Math.max(-1, ...own.probes.flatMap((probe) => probe.label));
  const shared = {
    current: probeAt,
    basis: () => state.basis,
    rows: () => probeRows(own, probeAt(), state.basis),
  };
  const [kind, by, assigned] = own.has_identity
    ? ["domain", "by domain", "as the mixer would assign them"]
    : [
        "cluster",
        "clustered among themselves",
        "found anew at every probe, as in a batch; these clusters are no domains of the graph, and their numbers are not ranks",
      ];
  return [
    scatterChart({
      ...shared,
      id: "pca-source",
      title: "Gradients of held-out rows, by source",
      note: "principal components of the directions of their sketches",
      labels: own.sources,
      kinds: () => own.source_N,
      kind,
    }),
    scatterChart({
      ...shared,
      id: "pca-domain",
      title: `The same rows, ${by}`,
      note: most < 0 ? "no domains known yet" : assigned,
      labels: Array.from({ length: most + 1 }, (_, k) => `${kind} ${k}`),
      kinds: (probe) => probe.label,
      kind,
    }),
  ];
}

function probeRows(own, probe, basis) {
  const [xs, ys] = probe[basis];
  return xs.map((x, n) => [
    n,
    named(own.sources[own.source_N[n]]),
    probe.label[n] < 0 ? "" : probe.label[n],
    number(x),
    number(ys[n]),
  ]);
}

function graphPart(data, run, state, probeAt) {
  const own = run.domains;
  const graphAt = () =>
    own.graphs[Math.min(state.graph ?? own.graphs.length - 1, own.graphs.length - 1)];
  const holder = el("div", {});
  const tell = () => {
    const domain = state.domain ?? graphAt().nodes[0]?.domain;
    const probe = own.probes.length ? probeAt() : null;
    holder.replaceChildren(
      domain === undefined ? "" : domainPanel(data, run, graphAt(), probe, domain),
    );
  };
  const chart = graphChart({
    id: "graph",
    note: own.has_identity ? null : own.numbering,
    current: graphAt,
    chosen: () => state.domain,
    choose: (domain) => {
      state.domain = domain;
      chart.redraw();
      tell();
    },
  });
  const steps = own.graphs.map((graph) => graph.step);
  const slider = stepSlider(
    "Graph after",
    "graph-step",
    steps,
    steps.indexOf(graphAt().step),
    (k) => {
      state.graph = k;
      chart.redraw();
      tell();
    },
  );
  state.tell = tell;
  tell();
  return el(
    "div",
    {},
    el("h3", {}, "Domains and how they agree"),
    el("div", { class: "controls" }, slider),
    el("div", { class: "grid" }, el("div", { class: "stay" }, chart.figure), holder),
  );
}

function weightPart(run) {
  const own = run.domains;
  const series = (curves) =>
    Object.entries(curves)
      .map(([name, curve]) => ({
        name: domainName(name),
        index: Number(name),
        line: curve.smooth || curve.raw,
        raw: Object.keys(curves).length <= 4 && curve.smooth ? curve.raw : null,
      }))
      .filter((one) => one.line.x.length);
  const note = own.has_identity ? own.numbering : `${own.numbering}: no line is one domain`;
  return el(
    "div",
    { class: "grid" },
    lineChart({ title: "Weights of domains", note, series: series(own.weight) }),
    lineChart({ title: "Shares of the samples", note, series: series(own.share) }),
  );
}

function countedOver(own) {
  if (own.has_identity) return "samples of the last batches, by source";
  return `samples of the step's batch, by source; ${own.numbering}: the bars of a chart are not one domain`;
}

// One row of bars a domain, one bar a graph: what the domain was made of, from first to last.
function compositionPart(run) {
  const own = run.domains;
  const graphs =
    own.graphs.length > 6
      ? Array.from(
          { length: 6 },
          (_, k) => own.graphs[Math.round((k * (own.graphs.length - 1)) / 5)],
        )
      : own.graphs;
  const numbers = [
    ...new Set(graphs.flatMap((graph) => graph.nodes.map((node) => node.domain))),
  ].sort((a, b) => a - b);
  const names = [
    ...new Set([
      ...own.sources,
      ...graphs.flatMap((graph) => graph.nodes.flatMap((node) => Object.keys(node.sources))),
    ]),
  ];
  const charts = numbers.map((domain) => {
    const bars = graphs
      .map((graph) => [graph, graph.nodes.find((one) => one.domain === domain)])
      .filter(([, node]) => node)
      .map(([graph, node]) => ({
        name: `step ${graph.step}`,
        parts: Object.entries(node.sources)
          .map(([name, count]) => [names.indexOf(name), count])
          .sort((a, b) => a[0] - b[0]),
      }));
    return barChart({
      title: capital(domainName(domain)),
      labels: names,
      bars,
      whole: true,
      bare: true,
      write: (value) => number(value),
    });
  });
  return el(
    "div",
    {},
    el("h3", {}, "What domains are made of, over time"),
    own.graphs.length > 6
      ? el(
          "p",
          { class: "soft" },
          `${graphs.length} of ${own.graphs.length} graphs are shown, evenly spaced.`,
        )
      : null,
    el("p", { class: "soft" }, countedOver(own)),
    el(
      "div",
      { class: "legend" },
      names.map((name, k) => key(name, k)),
    ),
    el("div", { class: "grid" }, charts),
  );
}
