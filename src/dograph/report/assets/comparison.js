// Methods beside each other.

const FIGURES = ["mean", "natural", "worst", "gap"];

function comparison(data, body) {
  if (!data.comparisons.length && !data.benchmarks) {
    body.append(
      el(
        "p",
        { class: "soft" },
        "Nothing to compare: give several runs that were trained alike, or the folder of dograph compare.",
      ),
    );
  }
  for (const one of data.comparisons) {
    if (data.comparisons.length > 1) body.append(el("h3", {}, named(one.title)));
    body.append(el("p", { class: "claim" }, named(one.claim)));
    if (one.methods.length)
      body.append(methodTable(one), differenceCharts(one), heatMap(one), extras(one));
    else body.append(el("p", { class: "soft" }, "No method came to a loss."));
    body.append(
      el(
        "ul",
        { class: "soft" },
        one.notes.map((note) => el("li", {}, named(note))),
      ),
    );
  }
  if (data.benchmarks) body.append(benchmarkCharts(data.benchmarks));
  if (data.scales.length) {
    const series = data.scales.map((scale, index) => pointSeries(scale.name, index, scale.points));
    body.append(
      lineChart({
        title: "Mean loss by size",
        note: "nats; shaded: 95 % over seeds",
        series,
        logX: true,
        xName: "parameters",
      }),
    );
  }
}

function pointSeries(name, index, points) {
  const known = points.every(([, estimate]) => estimate.low !== null);
  return {
    name,
    index,
    dots: true,
    line: { x: points.map(([x]) => x), y: points.map(([, estimate]) => estimate.value) },
    low: known ? points.map(([, estimate]) => estimate.low) : null,
    high: known ? points.map(([, estimate]) => estimate.high) : null,
  };
}

function methodTable(one) {
  const costs =
    one.methods.find((method) => method.costs.length)?.costs.map(([name]) => name) || [];
  const rows = one.methods.map((method) => {
    const difference = method.differences.mean;
    const figures = FIGURES.filter((name) => method.losses[name]).map((name) => ({
      text: number(method.losses[name].value),
      note: interval(method.losses[name]),
    }));
    return [
      named(method.name),
      method.seeds,
      ...figures,
      difference
        ? { text: signed(difference.value.value), note: interval(difference.value, signed) }
        : "",
      ...(one.is_planned ? claimed(difference) : []),
    ];
  });
  const spent = one.methods.map((method) => [
    named(method.name),
    ...costs.map((name) => new Map(method.costs).get(name) || ""),
  ]);
  const heads = [
    "method",
    "seeds",
    ...FIGURES.filter((name) => one.methods[0].losses[name]),
    `mean less ${one.baseline}'s`,
    ...(one.is_planned ? ["p (Holm)", { text: "claim", class: "left" }] : []),
  ];
  return el(
    "div",
    {},
    el("h3", {}, "Losses"),
    el(
      "p",
      { class: "soft" },
      "validation loss in nats, 95 % over seeds below; mean: every source alike, natural: by training tokens, worst: the largest, gap: largest less smallest",
    ),
    table(heads, rows, { name: "methods" }),
    costs.length
      ? [
          el("h3", {}, "What they took"),
          table(["method", ...costs.map(named)], spent, { name: "costs of methods" }),
        ]
      : null,
  );
}

function claimed(difference) {
  if (!difference) return ["", ""];
  const p = difference.p === null ? "" : difference.p.toFixed(3);
  return [p, { text: difference.claim || "", class: "left" }];
}

function differenceCharts(one) {
  const names = FIGURES.filter((name) => one.methods.some((method) => method.differences[name]));
  const charts = names.map((name) => {
    const rows = one.methods
      .map((method, index) => [method, index])
      .filter(([method]) => method.differences[name])
      .map(([method, index]) => ({
        name: method.name,
        index,
        ...method.differences[name].value,
        text: method.differences[name].text,
      }));
    const wide = rows.some((row) => row.text) ? "; pale: 95 % over validation text" : "";
    return dotChart({
      title: `Difference to ${one.baseline}, ${name}`,
      note: `nats, below 0 is better; line: 95 % over seeds${wide}`,
      rows,
      reference: 0,
      write: signed,
      xName: "nats",
      textName: wide ? "95 % over text" : null,
    });
  });
  return el(
    "div",
    {},
    el("h3", {}, "Paired differences"),
    charts.length
      ? el("div", { class: "grid" }, charts)
      : el("p", { class: "soft" }, "No pairs: no seed is shared with the baseline."),
  );
}

// A table is the heat map: every cell can be read, aloud too.
function heatMap(one) {
  const sources = Object.keys(one.methods[0].sources);
  const most = Math.max(
    1e-9,
    ...one.methods.flatMap((method) =>
      Object.values(method.source_differences).map((difference) =>
        Math.abs(difference.value.value),
      ),
    ),
  );
  const rows = one.methods.map((method) => [
    named(method.name),
    ...sources.map((source) => {
      const difference = method.source_differences[source];
      const level = method.sources[source];
      if (!level) return "";
      if (!difference) return { text: number(level.value), class: "heat" };
      const strength = (0.08 + 0.5 * (Math.abs(difference.value.value) / most)).toFixed(3);
      const claimed = difference.claim === "lower" || difference.claim === "higher" ? " !" : "";
      return {
        text: number(level.value),
        note: signed(difference.value.value) + claimed,
        class: "heat",
        shade: `rgba(var(--${difference.value.value < 0 ? "low" : "high"}), ${strength})`,
      };
    }),
  ]);
  return el(
    "div",
    {},
    el("h3", {}, "Methods by source"),
    el(
      "p",
      { class: "soft" },
      `loss in nats, below it the difference to ${one.baseline}; blue: lower, orange: higher, the deeper the more; ! claimed`,
    ),
    table(["method", ...sources.map(named)], rows, { name: "methods by source" }),
  );
}

function extras(one) {
  const parts = el("div", {});
  if (one.num_domains.length) {
    const series = one.num_domains.map(([rest, points], index) =>
      pointSeries(rest || "dograph", index, points),
    );
    parts.append(
      lineChart({
        title: "Mean loss by number of domains",
        note: "nats; shaded: 95 % over seeds",
        series,
        xName: "domains",
      }),
    );
  }
  if (one.objectives.length) {
    const of = new Map(one.methods.map((method) => [method.name, method]));
    const rows = one.objectives.map(([objective, name]) => {
      const method = of.get(name);
      const difference = method.differences.mean;
      return [
        named(objective),
        { text: named(name), class: "left" },
        ...FIGURES.filter((figure) => method.losses[figure]).map((figure) =>
          number(method.losses[figure].value),
        ),
        difference
          ? { text: signed(difference.value.value), note: interval(difference.value, signed) }
          : "",
      ];
    });
    parts.append(
      el("h3", {}, "Objectives"),
      table(
        ["objective", { text: "method", class: "left" }, ...FIGURES, `mean less ${one.baseline}'s`],
        rows,
        { name: "objectives" },
      ),
    );
  }
  return parts;
}

function benchmarkCharts(found) {
  const write = (value) => value.toFixed(1);
  const percent = (value) => (value === null || value === undefined ? null : 100 * value);
  const charts = found.tasks.map((task) => {
    const chance = percent(found.chance[task]);
    const rows = found.rows
      .map(([name, scores], index) => ({ name, index, score: scores[task] }))
      .filter((row) => row.score)
      .map((row) => ({
        name: row.name,
        index: row.index,
        value: percent(row.score.value),
        low: percent(row.score.low),
        high: percent(row.score.high),
        mark: chance,
      }));
    return dotChart({
      title: task,
      note: chance ? `accuracy in %, dashed: chance, ${write(chance)} %` : "accuracy in %",
      rows,
      write,
    });
  });
  return el(
    "div",
    {},
    el("h3", {}, "Downstream tasks"),
    el(
      "p",
      { class: "soft" },
      "acc_norm where the task has it, else acc; lines: 95 % over items, or over seeds where a method has several runs",
    ),
    el("div", { class: "grid" }, charts),
    found.notes.length
      ? el(
          "ul",
          { class: "soft" },
          found.notes.map((note) => el("li", {}, named(note))),
        )
      : null,
  );
}
