// How the model perceives the corpus: probes in the plane, the graph, what is known of a domain.

const ABSENT = {
  runs: "No run here has domains: they come with mixer.name=dograph. What any model perceives: dograph inspect.",
  probes:
    "This run was not probed (probe.rows=0, or no probe is due yet), so there is no picture of its gradients.",
  graphs: "No domain graph yet: it is written at every validation, from when domains are known.",
};

function domains(known) {
  if (!known.length) return [TEXTS.soft(ABSENT.runs)];
  const [name, own] = known.find(([run]) => run === state.run) || known[0];
  const chosen = (run) => {
    Object.assign(state, { run, probe: null, graph: null });
    again("domains");
  };
  const runs = known.map(([run]) => [run, run]);
  const choose = el("div", { class: "controls" }, choice("Run", "domain-run", runs, name, chosen));
  const at = (rows, k) => rows[Math.min(k ?? rows.length - 1, rows.length - 1)];
  const probeAt = () => at(own.probes, state.probe);
  const graphAt = () => at(own.graphs, state.graph);
  return [
    ...(known.length > 1 ? [choose] : []),
    ...own.notes.map(TEXTS.soft),
    own.probes.length ? probePart(own, probeAt) : TEXTS.soft(ABSENT.probes),
    own.graphs.length ? graphPart(own, probeAt, graphAt) : TEXTS.soft(ABSENT.graphs),
    el("div", { class: "grid" }, own.lines.map(lineChart)),
    el("div", {}, own.made_of.map(block)),
  ];
}

function stepSlider(label, id, rows, now, moved) {
  const output = el("output", { for: id }, ` step ${number(now.step)}`);
  const shape = { type: "range", min: 0, max: rows.length - 1, step: 1, value: rows.indexOf(now) };
  const input = el("input", { id, ...shape, "aria-valuetext": `step ${now.step}` });
  input.addEventListener("input", () => {
    const { step } = rows[Number(input.value)];
    output.textContent = ` step ${number(step)}`;
    input.setAttribute("aria-valuetext", `step ${step}`);
    moved(Number(input.value));
  });
  return el("label", { class: "slider", for: id }, el("span", {}, label, output), input);
}

function probePart(own, probeAt) {
  const charts = own.scatters.map((chart) => scatterChart(chart, own, probeAt));
  const set = (part) => (value) => {
    state[part] = value;
    charts.forEach((chart) => chart.move());
    state.tell();
  };
  const bases = [
    ["last", "of the last probe, for all steps"],
    ["own", "of each probe itself"],
  ];
  const slider = stepSlider("Probe after", "probe-step", own.probes, probeAt(), set("probe"));
  const basis = choice("Axes", "probe-basis", bases, state.basis, set("basis"));
  return el(
    "div",
    {},
    el("h3", {}, "Gradients in the plane"),
    el("div", { class: "controls" }, slider, basis),
    el("div", { class: "grid" }, charts.map((chart) => chart.figure)),
  );
}

function graphPart(own, probeAt, graphAt) {
  const holder = el("div", {});
  const set = (part) => (value) => {
    state[part] = value;
    chart.draw();
    state.tell();
  };
  const chart = graphChart(own.has_identity ? "" : own.numbering, graphAt, set("domain"));
  const slider = stepSlider("Graph after", "graph-step", own.graphs, graphAt(), set("graph"));
  state.tell = () => {
    const domain = state.domain ?? graphAt().nodes[0]?.domain;
    const panel = isKnown(domain) ? domainPanel(own, graphAt(), probeAt(), domain) : "";
    holder.replaceChildren(panel);
  };
  state.tell();
  return el(
    "div",
    {},
    el("h3", {}, "Domains and how they agree"),
    el("div", { class: "controls" }, slider),
    el("div", { class: "grid" }, el("div", { class: "stay" }, chart.figure), holder),
  );
}

// All that is known of one domain, beside the graph.
function domainPanel(own, graph, probe, domain) {
  const name = domainName(domain);
  const node = graph.nodes.find((one) => one.domain === domain);
  const [title, examples, none] = own.has_identity
    ? nearTexts(probe, domain)
    : batchTexts(own, graph, domain);
  const rank = `Its number is a rank by weight in the batch of step ${graph.step}, 0 the heaviest; ${name} of another step is another domain.`;
  return el(
    "div",
    { class: "panel", id: "domain-panel", "aria-live": "polite" },
    el("h3", {}, name[0].toUpperCase() + name.slice(1)),
    own.has_identity ? null : TEXTS.soft(rank),
    node ? nodeFacts(node, graph.step) : null,
    el("h4", {}, title),
    examples.length ? examples.map(sample) : TEXTS.soft(none),
    driftFacts(own.drift[domain] || []),
  );
}

function nearTexts(probe, domain) {
  const title = `Texts nearest its centre${probe ? ` (probe after step ${probe.step})` : ""}`;
  const none = "No held-out row is in this domain, or none were probed.";
  return [title, probe?.examples[domain] || [], none];
}

// A domain of one batch is the samples that were in it.
function batchTexts(own, graph, domain) {
  const steps = own.graphs.filter((one) => one.examples).map((one) => one.step);
  const none = `Samples are on this page for the graphs after steps ${steps.join(", ")}.`;
  const title = `Samples of step ${graph.step} in it`;
  return [title, graph.examples?.[domain] || [], steps.length ? none : "Its samples are not at hand."];
}

function nodeFacts(node, step) {
  const written = (name, value) => `${name} ${number(value, 3)}`;
  const figures = [
    written("share", node.share),
    written("weight", node.weight),
    written("norm of the mean gradient", node.norm),
    written("spread", node.spread),
  ];
  const heads = ["source", "samples", "of the domain"];
  return [
    el("p", {}, `After step ${step}: ${figures.join(", ")}.`),
    el("h4", {}, "Sources"),
    table({ name: "sources of the domain", heads, rows: sourcesOf(node) }),
  ];
}

function driftFacts(drift) {
  const rows = drift.map(({ step, rows, kept, cosine }) => [
    number(step),
    String(rows),
    number(kept, 2),
    number(cosine, 2),
  ]);
  const note =
    "kept: rows in both this probe and the one before, over rows in either; " +
    "cosine: of its centre to that of the last probe";
  const heads = ["step", "rows", "kept", "cosine"];
  const found = table({ name: "drift of the domain", heads, rows });
  return rows.length ? [el("h4", {}, "Drift"), TEXTS.soft(note), found] : [];
}

function sample(example) {
  const text = data.texts[example.text];
  const words = text ? text.text + (text.cut ? " …" : "") : "(text not at hand)";
  return el(
    "blockquote",
    { class: "sample" },
    el("p", { dir: "auto", tabindex: "0" }, words),
    el("footer", {}, named(example.source), `, document ${example.document}`),
  );
}
