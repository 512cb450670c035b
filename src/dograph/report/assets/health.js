// Whether weights stay sane, and what the steps cost.

function health(data, body) {
  const names = [...new Set(data.runs.flatMap((run) => run.health.map((measure) => measure.name)))];
  const grid = el("div", { class: "grid" });
  for (const name of names) {
    const found = data.runs
      .map((run) => [run, run.health.find((measure) => measure.name === name)])
      .filter(([, measure]) => measure && measure.curve.raw.x.length);
    const first = found[0][1];
    const log = found.some(([, measure]) => measure.log);
    const curveOf = (run) => run.health.find((measure) => measure.name === name)?.curve;
    const series = runSeries(data, data.runs, curveOf, found.length <= 4);
    grid.append(
      lineChart({
        title: first.title,
        note: first.meaning + (log ? "; logarithmic, zeros are not drawn" : ""),
        series,
        logY: log,
        height: 220,
      }),
    );
  }
  body.append(names.length ? grid : el("p", { class: "soft" }, "No step has been recorded yet."));
}

function cost(data, body) {
  const timed = data.runs.filter((run) => run.cost.parts.length);
  if (timed.length) {
    const labels = [...new Set(timed.flatMap((run) => run.cost.parts.map((part) => part.name)))];
    const bars = timed.map((run) => ({
      name: run.name,
      parts: run.cost.parts.map((part) => [labels.indexOf(part.name), part.ms]),
    }));
    body.append(
      barChart({
        title: "Where a step's time goes",
        note: "milliseconds a step, mean after the first 5 steps",
        labels,
        bars,
        xName: "ms",
        write: (value) => `${number(value, 2)} ms`,
      }),
    );
  }
  const rows = data.runs.map((run) => [
    named(run.name),
    number(run.cost.step_ms, 1),
    number(Math.round(run.cost.tokens_per_second || 0)) || "",
    bytes(run.cost.peak_bytes),
    run.cost.over_plain
      ? { text: run.cost.over_plain.toFixed(3), note: run.cost.plain }
      : run.cost.plain || "no plain run here",
    seconds(run.cost.seconds),
  ]);
  body.append(
    el("h3", {}, "By run"),
    table(
      ["run", "ms a step, on the clock", "tokens/s", "most memory", "over plain", "training took"],
      rows,
      { tall: rows.length > 12, name: "cost by run" },
    ),
  );
  body.append(
    el(
      "p",
      { class: "soft" },
      "Over plain compares two runs, each as it went, on whatever else the machine did meanwhile. Taken in turns and beside the least that is possible: dograph bench.",
    ),
  );
  for (const bench of data.benches) body.append(benchTable(bench));
  if (!data.benches.length)
    body.append(
      el(
        "p",
        { class: "soft" },
        "No bench.json was given, so there is no floor to show: dograph bench, then dograph report RUN --bench bench.json.",
      ),
    );
}

function benchTable(bench) {
  const rows = bench.arms.map((arm) => [
    named(arm.name),
    number(arm.ms, 1),
    arm.over_plain
      ? {
          text: arm.over_plain.value.toFixed(3),
          note: interval(arm.over_plain, (value) => value.toFixed(3)),
        }
      : "",
    number(arm.extra_ms, 1),
    number(arm.floor_ms, 1),
    arm.floor_ratio ? arm.floor_ratio.toFixed(3) : "",
    bytes(arm.peak_bytes),
  ]);
  return el(
    "div",
    {},
    el("h3", {}, "Bench: ", named(bench.title)),
    table(
      ["arm", "ms", "over plain", "extra ms", "floor ms", "floor, over plain", "memory"],
      rows,
      { name: `bench ${bench.title}` },
    ),
  );
}
