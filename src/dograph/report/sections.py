"""The page's sections from what was collected: which charts there are, and what stands around them.

Figures for a paper take the same charts from here.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dograph.report.charts import (
    FEW,
    BarChart,
    BlockGroup,
    DotChart,
    DotRow,
    Entry,
    Folded,
    LineChart,
    LossCharts,
    PageFacts,
    PageList,
    PageTable,
    PageText,
    Series,
    Shown,
    TableCell,
    as_json,
)
from dograph.report.collect import PageData
from dograph.report.comparison import Comparison, MethodRow, Points, num_domains_of, objectives_of
from dograph.report.one_run import HEALTH, RESIDUAL, RunData
from dograph.report.series import Curve, rounded
from dograph.stats import METRICS, t_quantile
from dograph.train.metrics import SUMMARIES

MOST_WARNINGS = 12
LONG = 12  # rows of a table that scrolls
Row = TypeVar("Row")


def page_json(data: PageData) -> str:
    """Everything the page shows, by the names that its script reads."""
    sections = {
        "overview": overview(data),
        "curves": curves(data),
        "domains": [(run.name, run.domains) for run in data.runs if run.domains],
        "health": health(data),
        "cost": cost(data),
        "comparison": comparison(data),
    }
    about = {name: getattr(data, name) for name in ("title", "verdict", "made", "program", "texts")}
    return as_json({"format": "dograph-page", "version": 2, **about, "sections": sections})


def table_of(
    name: str, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], Entry]]
) -> PageTable:
    """A row for each of `rows`, and a column for each of `columns`; `<`: a head to the left."""
    heads = [TableCell(head[1:], left=True) if head[0] == "<" else head for head in columns]
    entries = [[cell(row) for cell in columns.values()] for row in rows]
    return PageTable(name, heads, entries, tall=len(rows) > LONG)


def overview(data: PageData) -> list[Shown]:
    """What was run, how it ended, what to beware of, how to do it again."""
    runs, several = data.runs, len(data.runs) > 1
    warnings = [f"{run.name}: {text}" if several else text for run in runs for text in run.warnings]
    blocks: list[Shown] = []
    if warnings:
        rest = len(warnings) - MOST_WARNINGS
        more = [f"{rest} more"] if rest > 0 else []
        blocks.append(PageList([*warnings[:MOST_WARNINGS], *more], "warnings"))
    elif runs:
        none = "no source repeated too often, no fallback to equal weights, no solve that did not"
        blocks.append(PageText(f"No warnings: {none} converge."))
    blocks += _single(runs[0]) if len(runs) == 1 else _several(data)
    return [*blocks, Folded("How to read this page", [PageList(data.how, "plain")], "how")]


def _single(run: RunData) -> list[Shown]:
    facts: list[tuple[str, str | TableCell]] = [*run.facts]
    if run.cost.seconds:
        facts.append(("training took", TableCell(run.cost.seconds, "seconds")))
    about = BlockGroup([PageText("The run", "heading"), PageFacts(facts)])
    losses = BlockGroup([PageText("Last validation loss", "heading"), loss_table(run)])
    again = [PageText("Again", "heading"), PageText(run.command, "command")]
    return [BlockGroup([about, losses], grid=True), *again]


def _several(data: PageData) -> list[Shown]:
    runs = data.runs
    table = table_of(
        "runs",
        runs,
        {
            "run": lambda run: run.name,
            "<method": lambda run: TableCell(run.group, left=True),
            "seed": lambda run: str(run.config.seed),
            "steps": lambda run: dict(run.facts)["steps"],
            "tokens": lambda run: dict(run.facts)["tokens"],
            "time": lambda run: TableCell(run.cost.seconds, "seconds"),
            "mean loss, nats": lambda run: TableCell.of(run.mean_loss),
            "warnings": lambda run: str(len(run.warnings) or ""),
        },
    )
    each = [Folded(run.name, [PageFacts([*run.facts]), loss_table(run)]) for run in runs]
    whole = [one.command for one in data.comparisons if one.command]
    alone: Shown = PageText("\n".join(run.command for run in runs), "command")
    if len(runs) > 4 or whole:
        label = "Any run of it alone" if whole else f"The {len(runs)} commands"
        alone = Folded(label, [alone], "again")
    again = [PageText("\n".join(whole), "command"), alone] if whole else [alone]
    folded = Folded("Settings and losses of each run", each, "facts")
    return [PageText("Runs", "heading"), table, folded, PageText("Again", "heading"), *again]


def loss_table(run: RunData) -> Shown:
    if not run.losses:
        return PageText("There is no validation yet.")
    rows: list[list[Entry]] = []
    for loss in run.losses:
        perplexity = TableCell(math.exp(loss.nats.value), digits=1)
        epochs = TableCell(loss.epochs, "fixed", 2)
        rows.append([loss.name, TableCell.of(loss.nats), perplexity, epochs])
    heads = ["source", "nats, 95 % below", "perplexity", "read through"]
    summaries = sum(loss.is_summary for loss in run.losses)
    return PageTable("validation loss by source", heads, rows, summaries)


def curves(data: PageData) -> list[Shown]:
    """Losses over steps, by run or by method, in total or by source."""
    if not any("total" in run.train for run in data.runs):
        return [PageText("No step has been recorded yet.")]
    names = dict.fromkeys(name for run in data.runs for name in run.train if name != "total")
    repeated = any(len(runs) > 1 for runs in data.groups.values())
    charts = [
        (of, view, chart) for of in ("total", *names) for view, chart in loss_charts(data, of)
    ]
    steps = max(run.steps for run in data.runs)
    return [LossCharts(list(names), "methods" if repeated else "runs", steps, charts)]


def loss_charts(data: PageData, of: str) -> Iterator[tuple[str | None, LineChart]]:
    """Charts of one source, or of all of them (`total`), with the view that they belong to."""
    if of != "total":
        yield from loss_chart(data, "train", of, f"Training loss, {of}")
        yield from loss_chart(data, "valid", of, f"Validation loss, {of}")
        return
    yield from loss_chart(data, "train", "total", "Training loss, all sources")
    yield from loss_chart(data, "valid", "mean", "Validation loss, mean over sources")
    for name, label in (("natural", "weighted by training tokens"), ("worst", "worst source")):
        if any(name in run.valid for run in data.runs):
            yield from loss_chart(data, "valid", name, f"Validation loss, {label}")
    if len(data.runs) == 1:
        yield None, source_chart(data.runs[0])
    for title, note, own in (
        ("Learning rate", "of each step", [run.lr for run in data.runs]),
        ("Tokens per second", "on the clock, validation left out", [r.speed for r in data.runs]),
    ):
        yield None, LineChart(title, run_series(data, own), note, height=220, zero=True)


def loss_chart(
    data: PageData, part: str, name: str, title: str
) -> Iterator[tuple[str | None, LineChart]]:
    """Of runs, and of methods where there are several runs."""
    note = "nats per token, held-out text" if part == "valid" else "nats per token"
    y_name = "validation loss (nats)" if part == "valid" else "training loss (nats)"
    curves: list[Curve | None] = [getattr(run, part).get(name) for run in data.runs]
    several, few = len(data.runs) > 1, len(data.runs) <= 6
    runs = LineChart(title, run_series(data, curves), note, y_name=y_name, faint=few)
    yield "runs" if several else None, runs
    if not several:
        return
    bands = []
    for index, group in enumerate(data.groups):
        own = [curve for run, curve in zip(data.runs, curves, strict=True) if run.group == group]
        known = [curve for curve in own if curve is not None]
        if len(known) == len(own):
            bands.append(band(known, group, index, dots=part == "valid"))
    shown = [series for series in bands if series.x]
    yield "methods", LineChart(title, shown, f"{note}; shaded: 95 % over seeds", y_name=y_name)


def band(curves: Sequence[Curve], name: str, index: int, *, dots: bool = False) -> Series:
    """Mean and 95 % t interval over runs, at the steps that all of them have.

    Where curves are smoothed, it is that of the smoothed ones: the interval is then of the
    running mean. There is no interval where there is one run.
    """
    lines = [curve.smooth or curve.raw for curve in curves]
    shared = sorted(set.intersection(*(set(line.x) for line in lines)))
    rows = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    value_NX = np.array([[row[x] for x in shared] for row in rows], dtype=np.float64)
    mean_X, num, low, high = value_NX.mean(axis=0), len(lines), None, None
    if num > 1 and shared:
        reach_X = t_quantile(num - 1) * value_NX.std(axis=0, ddof=1) / math.sqrt(num)
        low, high = rounded(mean_X - reach_X), rounded(mean_X + reach_X)
    dots = dots and len(shared) <= FEW
    return Series(name, index, shared, rounded(mean_X), low, high, dots=dots)


def run_series(data: PageData, curves: Sequence[Curve | None]) -> list[Series]:
    """A method has a colour, its seeds have dashes; runs of a single method have a colour each."""
    found, groups = [], list(data.groups)
    for k, (run, curve) in enumerate(zip(data.runs, curves, strict=True)):
        if curve is not None and curve.raw.x:
            index, turn = groups.index(run.group), data.groups[run.group].index(run.name)
            place = (index, turn) if len(groups) > 1 else (k, 0)
            found.append(Series.of(curve, run.name, *place))
    return found


def source_chart(run: RunData) -> LineChart:
    names = [name for name in run.valid if name not in SUMMARIES]
    series = [Series.of(run.valid[name], name, index) for index, name in enumerate(names)]
    note, y_name = "nats per token, held-out text", "validation loss (nats)"
    return LineChart("Validation loss by source", series, note, y_name=y_name)


def health(data: PageData) -> list[Shown]:
    """Whether weights stay sane."""
    charts = health_charts(data)
    return [BlockGroup(charts, grid=True) if charts else PageText("No step has been recorded yet.")]


def health_charts(data: PageData) -> list[LineChart]:
    charts = []
    for name in dict.fromkeys(name for run in data.runs for name in run.health):
        found = [run for run in data.runs if name in run.health]
        title, meaning = HEALTH[name]
        # An exact solution has nothing to take logarithms of.
        log = name == RESIDUAL and any(y > 0 for run in found for y in run.health[name].raw.y)
        note = meaning.format(batch=found[0].config.train.batch_size)
        note += "; logarithmic, zeros are not drawn" if log else ""
        series, few = run_series(data, [run.health.get(name) for run in data.runs]), len(found) <= 4
        charts.append(LineChart(title, series, note, height=220, log_y=log, faint=few))
    return charts


def cost(data: PageData) -> list[Shown]:
    """What the steps cost."""
    chart = cost_chart(data)

    def over_plain(run: RunData) -> Entry:
        if run.cost.over_plain:
            return TableCell(run.cost.over_plain, "fixed", 3, note=run.cost.plain)
        return run.cost.plain or "no plain run here"

    table = table_of(
        "cost by run",
        data.runs,
        {
            "run": lambda run: run.name,
            "ms a step, on the clock": lambda run: TableCell(run.cost.step_ms, digits=1),
            "tokens/s": lambda run: TableCell(run.cost.tokens_per_second or 0, "whole"),
            "most memory": lambda run: TableCell(run.cost.peak_bytes or 0, "bytes"),
            "over plain": over_plain,
            "training took": lambda run: TableCell(run.cost.seconds, "seconds"),
        },
    )
    beside = PageText(
        "Over plain compares two runs, each as it went, on whatever else the machine did "
        "meanwhile. Taken in turns and beside the least that is possible: dograph bench."
    )
    floor = PageText(
        "No bench.json was given, so there is no floor to show: dograph bench, then dograph report "
        "RUN --bench bench.json."
    )
    first = [chart] if chart.bars else []
    return [*first, PageText("By run", "heading"), table, beside, *(data.benches or [floor])]


def cost_chart(data: PageData) -> BarChart:
    timed = [run for run in data.runs if run.cost.parts]
    labels = list(dict.fromkeys(name for run in timed for name in run.cost.parts))
    bars = [
        (run.name, [(labels.index(k), ms) for k, ms in run.cost.parts.items()]) for run in timed
    ]
    note = "milliseconds a step, mean after the first 5 steps"
    return BarChart("Where a step's time goes", labels, bars, note, "ms")


def comparison(data: PageData) -> list[Shown]:
    """Methods beside each other."""
    blocks: list[Shown] = []
    if not data.comparisons and not data.tasks:
        what = "give several runs that were trained alike, or the folder of dograph compare."
        blocks.append(PageText(f"Nothing to compare: {what}"))
    for one in data.comparisons:
        if len(data.comparisons) > 1:
            blocks.append(PageText(one.title, "heading"))
        blocks.append(PageText(one.claim, "claim"))
        blocks += _compared(one) if one.methods else [PageText("No method came to a loss.")]
        blocks.append(PageList(one.notes))
    if data.tasks:
        over = "95 % over items, or over seeds where a method has several runs"
        blocks.append(PageText("Downstream tasks", "heading"))
        blocks.append(PageText(f"acc_norm where the task has it, else acc; lines: {over}"))
        blocks.append(BlockGroup(data.tasks, grid=True))
        blocks += [PageList(data.task_notes)] if data.task_notes else []
    return blocks + ([scale_chart(data)] if data.scales else [])


def scale_chart(data: PageData) -> LineChart:
    return _point_chart("size", "parameters", data.scales, log_x=True)


def num_domains_chart(one: Comparison) -> LineChart:
    return _point_chart("number of domains", "domains", num_domains_of(one.methods))


def _point_chart(
    by: str, x_name: str, lines: Sequence[tuple[str, Points]], *, log_x: bool = False
) -> LineChart:
    series = [Series.of_points(own[0] or "dograph", k, own[1]) for k, own in enumerate(lines)]
    note, y_name = "nats; shaded: 95 % over seeds", "mean validation loss (nats)"
    return LineChart(f"Mean loss by {by}", series, note, x_name, y_name, log_x=log_x)


def _compared(one: Comparison) -> list[Shown]:
    """Losses, costs, differences, methods by source, sweeps."""
    figures = [name for name in METRICS if name in one.methods[0].losses]
    columns: dict[str, Callable[[MethodRow], Entry]] = {
        "method": lambda method: method.name,
        "seeds": lambda method: str(method.seeds),
    }

    def loss_column(name: str) -> Callable[[MethodRow], Entry]:
        return lambda method: TableCell.of(method.losses.get(name))

    columns |= {name: loss_column(name) for name in figures}
    columns[f"mean less {one.baseline}'s"] = _mean_difference
    if one.is_planned:
        tests = {method.name: method.differences.get("mean") for method in one.methods}
        p_values = {name: test.p_holm for name, test in tests.items() if test}
        claims = {name: test.claim for name, test in tests.items() if test}
        columns["p (Holm)"] = lambda method: TableCell(p_values.get(method.name), "fixed", 3)
        columns["<claim"] = lambda method: TableCell(claims.get(method.name), left=True)
    blocks: list[Shown] = [
        PageText("Losses", "heading"),
        PageText(
            "validation loss in nats, 95 % over seeds below; mean: every source alike, natural: by "
            "training tokens, worst: the largest, gap: largest less smallest"
        ),
        replace(table_of("methods", one.methods, columns), tall=False),
    ]
    spent = {method.name: dict(method.costs) for method in one.methods}
    if names := list(next(filter(None, spent.values()), {})):
        costs = [[name, *(own.get(part, "") for part in names)] for name, own in spent.items()]
        blocks.append(PageText("What they took", "heading"))
        blocks.append(PageTable("costs of methods", ["method", *names], costs))
    every = [difference_chart(one, name) for name in METRICS]
    charts = [chart for chart in every if chart.rows]
    no_pairs = PageText("No pairs: no seed is shared with the baseline.")
    legend = "blue: lower, orange: higher, the deeper the more; ! claimed"
    blocks += [
        PageText("Paired differences", "heading"),
        BlockGroup(charts, grid=True) if charts else no_pairs,
        PageText("Methods by source", "heading"),
        PageText(f"loss in nats, below it the difference to {one.baseline}; {legend}"),
        source_table(one),
    ]
    chart = num_domains_chart(one)
    return blocks + ([chart] if chart.series else []) + _objectives(one)


def _mean_difference(method: MethodRow) -> TableCell:
    mean = method.differences.get("mean")
    return TableCell.of(mean.estimate if mean else None, "signed")


def _objectives(one: Comparison) -> list[Shown]:
    methods, rows = {method.name: method for method in one.methods}, list[list[Entry]]()
    for objective, name in objectives_of(one.methods):
        losses = methods[name].losses
        values = [losses[figure].value for figure in METRICS if figure in losses]
        difference = _mean_difference(methods[name])
        rows.append([objective, TableCell(name, left=True), *values, difference])
    method = TableCell("method", left=True)
    heads = ("objective", method, *METRICS, f"mean less {one.baseline}'s")
    table = PageTable("objectives", heads, rows)
    return [PageText("Objectives", "heading"), table] if rows else []


def difference_chart(one: Comparison, figure: str) -> DotChart:
    """Every method less the baseline in one of the four figures."""
    rows = []
    for index, method in enumerate(one.methods):
        if own := method.differences.get(figure):
            value, text = own.estimate, own.over_items
            ends = (text.low, text.high) if text else None
            rows.append(DotRow(method.name, index, value.value, value.low, value.high, ends))
    pale = "; pale: 95 % over validation text" if any(row.text for row in rows) else ""
    return DotChart(
        f"Difference to {one.baseline}, {figure}",
        f"nats, below 0 is better; line: 95 % over seeds{pale}",
        rows,
        "signed",
        x_name="nats",
        paper_name=f"{figure} loss less {one.baseline}'s (nats),\n95 % over seeds",
        reference=0,
    )


def source_table(one: Comparison) -> PageTable:
    """A table that is a heat map: every cell can be read, aloud too."""
    sources = list(one.methods[0].sources)
    changes = [own.mean for method in one.methods for own in method.source_differences.values()]
    most = max([1e-9, *map(abs, changes)])
    rows: list[list[Entry]] = []
    for method in one.methods:
        row: list[Entry] = [method.name]
        for source in sources:
            level, own = method.sources.get(source), method.source_differences.get(source)
            cell = TableCell(level.value if level else None)
            if level and own:
                shade, claimed = own.mean / most, own.is_claimed
                cell = replace(cell, change=own.mean, shade=shade, claimed=claimed)
            row.append(cell)
        rows.append(row)
    return PageTable("methods by source", ["method", *sources], rows)
