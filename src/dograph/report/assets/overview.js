// What was run, how it ended, what to beware of, how to do it again.

function overview(data, body) {
  const warnings = data.runs.flatMap((run) => run.warnings.map((text) => [run, text]));
  if (warnings.length) {
    const several = data.runs.length > 1;
    const list = warnings
      .slice(0, 12)
      .map(([run, text]) => el("li", {}, several ? [named(run.name), ": "] : null, named(text)));
    const rest = warnings.length > 12 ? el("li", {}, `${warnings.length - 12} more`) : null;
    body.append(
      el(
        "div",
        { class: "warnings", role: "note" },
        el("h3", {}, "Warnings"),
        el("ul", {}, list, rest),
      ),
    );
  } else if (data.runs.length) {
    body.append(
      el(
        "p",
        { class: "soft" },
        "No warnings: no source repeated too often, no fallback to equal weights, no solve that did not converge.",
      ),
    );
  }
  if (data.runs.length === 1) single(data.runs[0], body);
  else several(data, body);
  body.append(
    el(
      "details",
      { id: "how" },
      el("summary", {}, "How to read this page"),
      el(
        "ul",
        {},
        data.how.map((text) => el("li", {}, text)),
      ),
    ),
  );
}

function single(run, body) {
  const facts = [...run.facts];
  if (run.cost.seconds) facts.push(["training took", seconds(run.cost.seconds)]);
  body.append(
    el(
      "div",
      { class: "grid" },
      el("div", {}, el("h3", {}, "The run"), factList(facts)),
      el("div", {}, el("h3", {}, "Last validation loss"), lossTable(run)),
    ),
  );
  body.append(el("h3", {}, "Again"), command([run.command]));
}

function lossTable(run) {
  if (!run.losses.length) return el("p", { class: "soft" }, "There is no validation yet.");
  const rows = run.losses.map((loss) => ({
    class: loss.is_summary ? "summary" : null,
    cells: [
      named(loss.name),
      { text: number(loss.nats.value), note: interval(loss.nats) },
      number(Math.exp(loss.nats.value), 1),
      loss.epochs === null ? "" : loss.epochs.toFixed(2),
    ],
  }));
  return table(["source", "nats, 95 % below", "perplexity", "read through"], rows, {
    name: "validation loss by source",
  });
}

function several(data, body) {
  const heads = [
    "run",
    { text: "method", class: "left" },
    "seed",
    "steps",
    "tokens",
    "time",
    "mean loss, nats",
    "warnings",
  ];
  const rows = data.runs.map((run) => {
    const mean = run.losses.find((loss) => loss.is_summary && loss.name === "mean");
    const fact = new Map(run.facts);
    return [
      named(run.name),
      { text: named(run.group), class: "left" },
      run.seed,
      fact.get("steps"),
      fact.get("tokens"),
      seconds(run.cost.seconds),
      mean ? { text: number(mean.nats.value), note: interval(mean.nats) } : "",
      run.warnings.length || "",
    ];
  });
  const each = data.runs.map((run) =>
    el("details", {}, el("summary", {}, named(run.name)), factList(run.facts), lossTable(run)),
  );
  body.append(
    el("h3", {}, "Runs"),
    table(heads, rows, { tall: rows.length > 12, name: "runs" }),
    el("details", { id: "facts" }, el("summary", {}, "Settings and losses of each run"), each),
  );
  const alone = command(data.runs.map((run) => run.command));
  const whole = data.comparisons.map((one) => one.command).filter(Boolean);
  const label = whole.length ? "Any run of it alone" : `The ${data.runs.length} commands`;
  const folded = el("details", { id: "again" }, el("summary", {}, label), alone);
  body.append(el("h3", {}, "Again"), ...(whole.length ? [command(whole)] : []));
  body.append(data.runs.length > 4 || whole.length ? folded : alone);
}

function factList(facts) {
  return el(
    "dl",
    { class: "facts" },
    facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, named(value))]),
  );
}

function command(lines) {
  return el("pre", { class: "command", tabindex: "0" }, el("code", {}, lines.join("\n")));
}
