"""The page's sections from what was collected: which charts there are, and what stands around them.

Figures for a paper take the same charts from here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from dograph.stats import METRICS, Estimate, t_quantile
from dograph.train.metrics import SUMMARIES

MOST_WARNINGS = 12
LONG = 12  # rows of a table that scrolls


def page_json(data: PageData) -> str:
    """Everything the page shows, by the names that its script reads."""
    return as_json(
        {
            "format": "dograph-page",
            "version": 2,
            "title": data.title,
            "verdict": data.verdict,
            "made": data.made,
            "program": data.program,
            "sections": {
                "overview": overview(data),
                "curves": curves(data),
                "domains": [(run.name, run.domains) for run in data.runs if run.domains],
                "health": health(data),
                "cost": cost(data),
                "comparison": comparison(data),
            },
            "texts": data.texts,
        }
    )


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
        blocks.append(
            PageText(
                "No warnings: no source repeated too often, no fallback to equal weights, no solve "
                "that did not converge."
            )
        )
    blocks += _several(data) if len(runs) != 1 else _single(runs[0])
    return [*blocks, Folded("How to read this page", [PageList(data.how, "plain")], "how")]


def _single(run: RunData) -> list[Shown]:
    facts: list[tuple[str, str | TableCell]] = [*run.facts]
    if run.cost.seconds:
        facts.append(("training took", TableCell(value=run.cost.seconds, write="seconds")))
    return [
        BlockGroup(
            [
                BlockGroup([PageText("The run", "heading"), PageFacts(facts)]),
                BlockGroup([PageText("Last validation loss", "heading"), loss_table(run)]),
            ],
            grid=True,
        ),
        PageText("Again", "heading"),
        PageText(run.command, "command"),
    ]


def loss_table(run: RunData) -> Shown:
    if not run.losses:
        return PageText("There is no validation yet.")
    return PageTable(
        name="validation loss by source",
        heads=["source", "nats, 95 % below", "perplexity", "read through"],
        rows=[
            [
                loss.name,
                TableCell.of(loss.nats),
                TableCell(value=math.exp(loss.nats.value), digits=1),
                TableCell(value=loss.epochs, write="fixed", digits=2),
            ]
            for loss in run.losses
        ],
        summaries=sum(loss.is_summary for loss in run.losses),
    )


def _several(data: PageData) -> list[Shown]:
    runs, rows = data.runs, list[list[Entry]]()
    for run in runs:
        facts = dict(run.facts)
        rows.append(
            [
                run.name,
                TableCell(value=run.group, left=True),
                str(run.seed),
                facts["steps"],
                facts["tokens"],
                TableCell(value=run.cost.seconds, write="seconds"),
                TableCell.of(run.mean_loss),
                str(len(run.warnings) or ""),
            ]
        )
    method = TableCell(value="method", left=True)
    heads: list[str | TableCell] = [
        "run",
        method,
        "seed",
        "steps",
        "tokens",
        "time",
        "mean loss, nats",
        "warnings",
    ]
    each = [Folded(run.name, [PageFacts([*run.facts]), loss_table(run)]) for run in runs]
    whole = [one.command for one in data.comparisons if one.command]
    alone: Shown = PageText("\n".join(run.command for run in runs), "command")
    if len(runs) > 4 or whole:
        label = "Any run of it alone" if whole else f"The {len(runs)} commands"
        alone = Folded(label, [alone], "again")
    return [
        PageText("Runs", "heading"),
        PageTable(name="runs", heads=heads, rows=rows, tall=len(rows) > LONG),
        Folded("Settings and losses of each run", each, "facts"),
        PageText("Again", "heading"),
        *([PageText("\n".join(whole), "command")] if whole else []),
        alone,
    ]


def curves(data: PageData) -> list[Shown]:
    """Losses over steps, by run or by method, in total or by source."""
    if not any("total" in run.train for run in data.runs):
        return [PageText("No step has been recorded yet.")]
    names = dict.fromkeys(name for run in data.runs for name in run.train if name != "total")
    charts = [
        (of, view, chart) for of in ("total", *names) for view, chart in loss_charts(data, of)
    ]
    return [
        LossCharts(
            names=list(names),
            view="methods" if any(len(runs) > 1 for runs in data.groups.values()) else "runs",
            steps=max(run.steps for run in data.runs),
            charts=charts,
        )
    ]


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
    for title, note, curves in (
        ("Learning rate", "of each step", [run.lr for run in data.runs]),
        ("Tokens per second", "on the clock, validation left out", [r.speed for r in data.runs]),
    ):
        series = run_series(data, curves)
        yield None, LineChart(title=title, note=note, series=series, zero=True, height=220)


def loss_chart(
    data: PageData, part: str, name: str, title: str
) -> Iterator[tuple[str | None, LineChart]]:
    """Of runs, and of methods where there are several runs."""
    note = "nats per token, held-out text" if part == "valid" else "nats per token"
    y_name = "validation loss (nats)" if part == "valid" else "training loss (nats)"
    curves: list[Curve | None] = [getattr(run, part).get(name) for run in data.runs]
    series, few = run_series(data, curves), len(data.runs) <= 6
    runs = LineChart(title=title, note=note, y_name=y_name, series=series, faint=few)
    if len(data.runs) == 1:
        yield None, runs
        return
    bands = []
    for index, group in enumerate(data.groups):
        own = [curve for run, curve in zip(data.runs, curves, strict=True) if run.group == group]
        known = [curve for curve in own if curve is not None]
        if len(known) == len(own):
            bands.append(band(known, group, index, dots=part == "valid"))
    yield "runs", runs
    note = f"{note}; shaded: 95 % over seeds"
    bands = [series for series in bands if series.x]
    yield "methods", LineChart(title=title, note=note, y_name=y_name, series=bands)


def band(curves: Sequence[Curve], name: str, index: int, *, dots: bool = False) -> Series:
    """Mean and 95 % t interval over runs, at the steps that all of them have.

    Where curves are smoothed, it is that of the smoothed ones: the interval is then of the
    running mean. There is no interval where there is one run.
    """
    lines = [curve.smooth or curve.raw for curve in curves]
    shared = sorted(set.intersection(*(set(line.x) for line in lines)))
    rows = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    value_NX = np.array([[row[x] for x in shared] for row in rows], dtype=np.float64)
    mean_X, num = value_NX.mean(axis=0), len(lines)
    low = high = None
    if num > 1 and shared:
        reach_X = t_quantile(num - 1) * value_NX.std(axis=0, ddof=1) / math.sqrt(num)
        low, high = rounded(mean_X - reach_X), rounded(mean_X + reach_X)
    dots = dots and len(shared) <= FEW
    return Series(
        name=name, index=index, x=shared, y=rounded(mean_X), low=low, high=high, dots=dots
    )


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
    return LineChart(
        title="Validation loss by source",
        note="nats per token, held-out text",
        y_name="validation loss (nats)",
        series=[Series.of(run.valid[name], name, index) for index, name in enumerate(names)],
    )


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
        note = meaning.format(batch=found[0].batch_size)
        charts.append(
            LineChart(
                title=title,
                note=note + ("; logarithmic, zeros are not drawn" if log else ""),
                series=run_series(data, [run.health.get(name) for run in data.runs]),
                log_y=log,
                height=220,
                faint=len(found) <= 4,
            )
        )
    return charts


def cost(data: PageData) -> list[Shown]:
    """What the steps cost."""
    rows: list[list[Entry]] = []
    for run in data.runs:
        own = run.cost
        beside: TableCell | str = own.plain or "no plain run here"
        if own.over_plain:
            beside = TableCell(value=own.over_plain, write="fixed", digits=3, note=own.plain)
        rows.append(
            [
                run.name,
                TableCell(value=own.step_ms, digits=1),
                TableCell(value=own.tokens_per_second or 0, write="whole"),
                TableCell(value=own.peak_bytes or 0, write="bytes"),
                beside,
                TableCell(value=own.seconds, write="seconds"),
            ]
        )
    heads = ["run", "ms a step, on the clock", "tokens/s", "most memory", "over plain"]
    chart = cost_chart(data)
    floor = PageText(
        "No bench.json was given, so there is no floor to show: dograph bench, then dograph report "
        "RUN --bench bench.json."
    )
    return [
        *([chart] if chart.bars else []),
        PageText("By run", "heading"),
        PageTable(
            name="cost by run", heads=[*heads, "training took"], rows=rows, tall=len(rows) > LONG
        ),
        PageText(
            "Over plain compares two runs, each as it went, on whatever else the machine did "
            "meanwhile. Taken in turns and beside the least that is possible: dograph bench."
        ),
        *(data.benches or [floor]),
    ]


def cost_chart(data: PageData) -> BarChart:
    timed = [run for run in data.runs if run.cost.parts]
    labels = list(dict.fromkeys(name for run in timed for name in run.cost.parts))
    return BarChart(
        title="Where a step's time goes",
        note="milliseconds a step, mean after the first 5 steps",
        labels=labels,
        bars=[
            (run.name, [(labels.index(name), ms) for name, ms in run.cost.parts.items()])
            for run in timed
        ],
        unit="ms",
    )


def comparison(data: PageData) -> list[Shown]:
    """Methods beside each other."""
    blocks: list[Shown] = []
    if not data.comparisons and not data.tasks:
        blocks.append(
            PageText(
                "Nothing to compare: give several runs that were trained alike, or the folder of "
                "dograph compare."
            )
        )
    for one in data.comparisons:
        if len(data.comparisons) > 1:
            blocks.append(PageText(one.title, "heading"))
        blocks.append(PageText(one.claim, "claim"))
        blocks += _compared(one) if one.methods else [PageText("No method came to a loss.")]
        blocks.append(PageList(one.notes))
    if data.tasks:
        blocks += [
            PageText("Downstream tasks", "heading"),
            PageText(
                "acc_norm where the task has it, else acc; lines: 95 % over items, or over seeds "
                "where a method has several runs"
            ),
            BlockGroup(data.tasks, grid=True),
            *([PageList(data.task_notes)] if data.task_notes else []),
        ]
    if data.scales:
        blocks.append(point_chart("size", "parameters", data.scales, log_x=True))
    return blocks


def point_chart(
    by: str, x_name: str, lines: Sequence[tuple[str, Points]], *, log_x: bool = False
) -> LineChart:
    """Mean loss by size or by number of domains."""
    series = [
        Series.of_points(name or "dograph", index, points)
        for index, (name, points) in enumerate(lines)
    ]
    return LineChart(
        title=f"Mean loss by {by}",
        note="nats; shaded: 95 % over seeds",
        x_name=x_name,
        y_name="mean validation loss (nats)",
        series=series,
        log_x=log_x,
    )


def _compared(one: Comparison) -> list[Shown]:
    """Losses, costs, differences, methods by source, sweeps."""
    blocks: list[Shown] = [
        PageText("Losses", "heading"),
        PageText(
            "validation loss in nats, 95 % over seeds below; mean: every source alike, natural: by "
            "training tokens, worst: the largest, gap: largest less smallest"
        ),
        method_table(one),
    ]
    spent = {method.name: dict(method.costs) for method in one.methods}
    if names := list(next(filter(None, spent.values()), {})):
        costs = [[name, *(own.get(part, "") for part in names)] for name, own in spent.items()]
        blocks.append(PageText("What they took", "heading"))
        blocks.append(PageTable(name="costs of methods", heads=["method", *names], rows=costs))
    charts = [difference_chart(one, name) for name in METRICS]
    charts = [chart for chart in charts if chart.rows]
    no_pairs = PageText("No pairs: no seed is shared with the baseline.")
    blocks += [
        PageText("Paired differences", "heading"),
        BlockGroup(charts, grid=True) if charts else no_pairs,
        PageText("Methods by source", "heading"),
        PageText(
            f"loss in nats, below it the difference to {one.baseline}; blue: lower, orange: higher,"
            " the deeper the more; ! claimed"
        ),
        source_table(one),
    ]
    if lines := num_domains_of(one.methods):
        blocks.append(point_chart("number of domains", "domains", lines))
    if pairs := objectives_of(one.methods):
        rows: list[list[Entry]] = []
        own = {method.name: method for method in one.methods}
        for objective, name in pairs:
            losses = own[name].losses
            row: list[Entry] = [objective, TableCell(value=name, left=True)]
            row += [losses[figure].value for figure in METRICS if figure in losses]
            rows.append([*row, _mean_difference(own[name])])
        heads: list[str | TableCell] = ["objective", TableCell(value="method", left=True)]
        heads += [*METRICS, f"mean less {one.baseline}'s"]
        blocks.append(PageText("Objectives", "heading"))
        blocks.append(PageTable(name="objectives", heads=heads, rows=rows))
    return blocks


def _mean_difference(method: MethodRow) -> TableCell:
    mean = method.differences.get("mean")
    return TableCell.of(mean.estimate if mean else None, "signed")


def method_table(one: Comparison) -> PageTable:
    figures = [name for name in METRICS if name in one.methods[0].losses]
    heads: list[str | TableCell] = ["method", "seeds", *figures, f"mean less {one.baseline}'s"]
    rows: list[list[Entry]] = []
    for method in one.methods:
        losses, mean = method.losses, method.differences.get("mean")
        row: list[Entry] = [method.name, str(method.seeds)]
        row += [TableCell.of(losses[name]) for name in METRICS if name in losses]
        row.append(_mean_difference(method))
        if one.is_planned:
            row.append(TableCell(value=mean.p_holm if mean else None, write="fixed", digits=3))
            row.append(TableCell(value=mean.claim if mean else None, left=True))
        rows.append(row)
    if one.is_planned:
        heads += ["p (Holm)", TableCell(value="claim", left=True)]
    return PageTable(name="methods", heads=heads, rows=rows)


def difference_chart(one: Comparison, figure: str) -> DotChart:
    """Every method less the baseline in one of the four figures."""
    rows = []
    for index, method in enumerate(one.methods):
        if own := method.differences.get(figure):
            value, text = own.estimate, own.over_items
            rows.append(
                DotRow(
                    name=method.name,
                    index=index,
                    value=value.value,
                    low=value.low,
                    high=value.high,
                    text=(text.low, text.high) if text else None,
                )
            )
    pale = "; pale: 95 % over validation text" if any(row.text for row in rows) else ""
    return DotChart(
        title=f"Difference to {one.baseline}, {figure}",
        note=f"nats, below 0 is better; line: 95 % over seeds{pale}",
        rows=rows,
        write="signed",
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
            cell = TableCell.of(level and Estimate(level.value))
            if level and own:
                shade = own.mean / most
                cell = replace(cell, change=own.mean, shade=shade, claimed=own.is_claimed)
            row.append(cell)
        rows.append(row)
    return PageTable(name="methods by source", heads=["method", *sources], rows=rows)
