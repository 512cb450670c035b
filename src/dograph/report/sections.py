"""The sections of a page: which charts and tables there are, and their texts.

Figures for a paper use the same charts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dograph.compare.tables import TextTable, equal_time_table, tables
from dograph.report.charts import (
    DotChart,
    DotRow,
    Entry,
    LineChart,
    LossCharts,
    PageBlock,
    PageItem,
    PageTable,
    TableCell,
    as_json,
)
from dograph.report.collect import Comparison, PageData
from dograph.report.one_run import HEALTH, LOSS, WARM_UP, RunData
from dograph.report.series import FEW, SMOOTHED_SHARE, Series, distinct, rounded
from dograph.stats import METRICS, t_quantile

MOST_WARNINGS = 12
LONG = 12  # longer tables scroll
TOTAL_LOSSES = {
    "train/loss_nats": "Training loss, all sources",
    "valid/mean/loss_nats": "Validation loss, mean over sources",
    "valid/natural/loss_nats": "Validation loss, weighted by training tokens",
    "valid/worst/loss_nats": "Validation loss, worst source",
}
PER_RUN = {  # title and note
    "optim/lr": ("Learning rate", "of each step"),
    "time/tokens_per_second": ("Tokens per second", "wall-clock, without validation"),
}
HOW_TO_READ = (
    f"The bold line is a running mean over 1/{SMOOTHED_SHARE} of the points, computed before any "
    "are left out. The window is narrower at the start, and at the end it is a straight line "
    "through the last points. The faint line is the raw data.",
    "Intervals are 95 %. For the losses of one run they are over validation blocks, treated as "
    "independent: they say how the loss would vary on other text. Shaded areas, and intervals of "
    "several seeds, are Student t intervals over seeds.",
)
NO_STEPS = "No training step has been recorded yet."
NO_WARNINGS = (
    "No warnings: no source was repeated too often, no step fell back to equal weights, and every "
    "solve converged."
)
PRICE = (
    "Step times of separate runs also differ by other load on the machine. The price of a method "
    "beside a plain step is measured in turns by dograph bench."
)
NOTHING_TO_COMPARE = "Nothing to compare: give a folder of dograph compare."
METRICS_NOTE = (
    "mean: of all sources, natural: weighted by training tokens, worst: the largest, gap: largest "
    "minus smallest; difference to the first method"
)
Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], Entry]]


def page_json(data: PageData) -> str:
    """Everything the page shows, under the names that its script reads."""
    about = {name: getattr(data, name) for name in ("title", "verdict", "made", "steps")}
    sections = {name: build(data) for name, (_, build) in SECTIONS.items()}
    return as_json({**about, "sections": sections})


def heading(text: str) -> PageBlock:
    return PageBlock("heading", text)


def table_of(name: str, rows: Sequence[Row], columns: Columns[Row], *left: str) -> PageTable:
    """A table with one line per row; columns in `left` are text."""
    entries = [[cell(row) for cell in columns.values()] for row in rows]
    return PageTable(name, list(columns), entries, left, tall=len(rows) > LONG)


def overview(data: PageData) -> list[PageItem]:
    """What was run and with which result, warnings, and how to reproduce it."""
    runs, blocks = data.runs, list[PageItem]()
    several = len(runs) > 1
    own = [f"{run.name}: {text}" if several else text for run in runs for text in run.warnings]
    warnings = [*data.damage, *own]
    if warnings:
        rest = len(warnings) - MOST_WARNINGS
        more = [f"{rest} more"] if rest > 0 else []
        blocks.append(PageBlock("warnings", [*warnings[:MOST_WARNINGS], *more]))
    elif runs:
        blocks.append(PageBlock("soft", NO_WARNINGS))
    blocks += _one_run(runs[0]) if len(runs) == 1 else _several_runs(data)
    thinned = (
        f"Curves of more than {2 * data.buckets + 2} points are drawn by their first and last "
        f"point and the minimum and maximum of each of {data.buckets} segments: no spike is lost, "
        "and every point drawn was measured. The files of the run have all points."
    )
    how = PageBlock("list", [thinned, *HOW_TO_READ])
    return [*blocks, PageBlock("folded", [how], "How to read this page", "how")]


def _one_run(run: RunData) -> list[PageItem]:
    about = PageBlock("group", [heading("The run"), PageBlock("facts", run.facts)])
    after = f"Validation loss after step {run.validated:,}" if run.losses else "Validation loss"
    losses = PageBlock("group", [heading(after), loss_table(run)])
    columns = PageBlock("grid", [about, losses])
    return [columns, heading("Reproduce this run"), PageBlock("command", run.command)]


def _several_runs(data: PageData) -> list[PageItem]:
    runs = data.runs
    columns: Columns[RunData] = {
        "run": lambda run: run.name,
        "method": lambda run: run.group,
        "seed": lambda run: str(run.config.seed),
        "steps": lambda run: run.facts["steps"],
        "tokens": lambda run: run.facts["tokens"],
        "time": lambda run: run.facts["training time"],
        "mean loss, nats": lambda run: TableCell(run.losses.get("mean")),
        "warnings": lambda run: str(len(run.warnings) or ""),
    }
    each = [
        PageBlock("folded", [PageBlock("facts", run.facts), loss_table(run)], run.name)
        for run in runs
    ]
    details = PageBlock("folded", each, "Settings and losses of each run", "facts")
    whole = "\n".join(one.findings.command for one in data.comparisons if one.findings.command)
    single = PageBlock("command", "\n".join(run.command for run in runs))
    commands = [PageBlock("folded", [single], "Commands of the single runs", "again")]
    commands = [PageBlock("command", whole), *commands] if whole else commands
    table = table_of("runs", runs, columns, "method")
    return [heading("Runs"), table, details, heading("Reproduce these runs"), *commands]


def loss_table(run: RunData) -> PageItem:
    if not run.losses:
        return PageBlock("soft", "No validation loss yet.")
    columns: Columns[str] = {
        "source": lambda name: name,
        "loss in nats, 95 %": lambda name: TableCell(run.losses[name]),
        "perplexity": lambda name: TableCell(math.exp(run.losses[name].value), digits=1),
        "bits per byte": lambda name: TableCell(run.bits[name], "fixed", 3),
        "epochs": lambda name: TableCell(run.epochs[name], "fixed", 2),
    }
    table = table_of("validation loss by source", list(run.losses), columns)
    return replace(table, summaries=len(run.losses) - len(run.sources), tall=False)


def curves(data: PageData) -> list[PageItem]:
    """Losses over steps, by run or by method, in total or by source."""
    runs = data.runs
    if not any("train/loss_nats" in run.curves for run in runs):
        return [PageBlock("soft", NO_STEPS)]
    metrics = dict.fromkeys(metric for run in runs for metric in run.curves)
    trained = [name for name in metrics if name.startswith("train/") and name.endswith(LOSS)]
    sources = [name[len("train/") : -len(LOSS)] for name in trained if name != "train/loss_nats"]
    titles = [("total", metric, title) for metric, title in TOTAL_LOSSES.items()]
    for source in sources:
        titles.append((source, f"train/{source}{LOSS}", f"Training loss, {source}"))
        titles.append((source, f"valid/{source}{LOSS}", f"Validation loss, {source}"))
    charts: list[tuple[str, str | None, LineChart]] = [
        (source, view, chart)
        for source, metric, title in titles
        if metric in metrics
        for view, chart in loss_charts(data, metric, title).items()
    ]
    if len(runs) == 1 and runs[0].losses:
        charts.append(("total", None, source_chart(runs[0])))
    for metric, (title, note) in PER_RUN.items():
        if metric in metrics:
            chart = LineChart(title, run_series(data, metric), note, zero=True)
            charts.append(("total", None, chart))
    repeated = any(len(names) > 1 for names in data.groups.values())
    return [LossCharts(sources, "methods" if repeated else "runs", charts)]


def loss_charts(data: PageData, metric: str, title: str) -> dict[str | None, LineChart]:
    """A loss of all runs by view: of single runs, and of methods if there are several runs."""
    held_out = metric.startswith("valid/")
    note = "nats per token, held-out text" if held_out else "nats per token"
    y_name = f"{'validation' if held_out else 'training'} loss (nats)"
    few, several = len(data.runs) <= 6, len(data.runs) > 1
    runs = LineChart(title, run_series(data, metric), note, y_name=y_name, faint=few)
    if not several:
        return {None: runs}
    bands = []
    for index, group in enumerate(data.groups):
        own = [run.curves.get(metric) for run in data.runs if run.group == group]
        known = [curve for curve in own if curve is not None]
        if len(known) == len(own):
            bands.append(band(known, group, index, dots=held_out))
    shown = distinct([series for series in bands if series.x])
    note = f"{note}; shaded: 95 % interval over seeds"
    return {"runs": runs, "methods": replace(runs, series=shown, note=note, faint=False)}


def band(curves: Sequence[Series], name: str, index: int, *, dots: bool = False) -> Series:
    """Mean loss and 95 % t interval over runs, at the steps that all of them have.

    If curves are smoothed, the interval is that of the running mean. One run has no interval.
    """
    shared = sorted(set.intersection(*(set(curve.x) for curve in curves)))
    rows = [dict(zip(curve.x, curve.y, strict=True)) for curve in curves]
    value_NX = np.array([[row[x] for x in shared] for row in rows], dtype=np.float64)
    mean_X, num, low, high = value_NX.mean(axis=0), len(curves), None, None
    if num > 1 and shared:
        reach_X = t_quantile(num - 1) * value_NX.std(axis=0, ddof=1) / math.sqrt(num)
        low, high = rounded(np.maximum(mean_X - reach_X, 0)), rounded(mean_X + reach_X)
    mean = Series(x=shared, y=rounded(mean_X), low=low, high=high, name=name, index=index)
    return replace(mean, dots=dots and len(shared) <= FEW)


def run_series(data: PageData, metric: str) -> list[Series]:
    """A colour per method and a dash pattern per seed; with one method, a colour per run.

    Identical lines, such as the learning rates of equal schedules, are drawn once.
    """
    series, groups = [], list(data.groups)
    for k, run in enumerate(data.runs):
        curve = run.curves.get(metric)
        if curve is not None:
            index, seed = groups.index(run.group), data.groups[run.group].index(run.name)
            index, seed = (index, seed) if len(groups) > 1 else (k, 0)
            series.append(replace(curve, name=run.name, index=index, dash=seed))
    return distinct(series)


def source_chart(run: RunData) -> LineChart:
    series = [
        replace(run.curves[f"valid/{source}{LOSS}"], name=source, index=index)
        for index, source in enumerate(run.sources)
    ]
    note, y_name = "nats per token, held-out text", "validation loss (nats)"
    return LineChart("Validation loss by source", series, note, y_name=y_name)


def health(data: PageData) -> list[PageItem]:
    """Charts that show whether weights are reasonable."""
    charts = []
    for metric, text in HEALTH.items():
        title, note = text.split(": ", 1)
        series = run_series(data, metric)
        if not series:
            continue
        note = note.format(batch=" or ".join({str(run.config.batches): 0 for run in data.runs}))
        is_share, few = metric.endswith("nmi"), len(series) <= 4
        charts.append(LineChart(title, series, note, zero=is_share, faint=few))
    watched: list[PageItem] = []
    for run in (run for run in data.runs if run.watched):
        name = f", {run.name}" if len(data.runs) > 1 else ""
        watched += [heading(f"Spikes and unusual samples{name}"), PageBlock("list", run.watched)]
    return [PageBlock("grid", charts) if charts else PageBlock("soft", NO_STEPS), *watched]


def cost(data: PageData) -> list[PageItem]:
    """Time and memory of the steps."""
    names = dict.fromkeys(part for run in data.runs for part in run.cost.parts)

    def part_of(name: str) -> Callable[[RunData], Entry]:
        return lambda run: TableCell(run.cost.parts.get(name), digits=2)

    columns: Columns[RunData] = {
        "run": lambda run: run.name,
        "ms per step, wall-clock": lambda run: TableCell(run.cost.step_ms, digits=1),
        **{f"{name}, ms": part_of(name) for name in names},
        "tokens/s": lambda run: round(run.cost.tokens_per_second or 0),
        "peak memory": lambda run: (
            f"{peak / 2**30:.2f} GiB" if (peak := run.cost.peak_bytes) else "not recorded"
        ),
        "training time": lambda run: run.facts["training time"],
    }
    parts = f"Parts of a step: means after the first {WARM_UP} steps."
    table = table_of("cost by run", data.runs, columns)
    return [table, PageBlock("soft", f"{parts} {PRICE}" if names else PRICE)]


def comparison(data: PageData) -> list[PageItem]:
    """Methods compared, and downstream tasks."""
    blocks: list[PageItem] = []
    if not data.comparisons and not data.tasks:
        blocks.append(PageBlock("soft", NOTHING_TO_COMPARE))
    for one in data.comparisons:
        if len(data.comparisons) > 1:
            blocks.append(heading(one.title))
        blocks.append(PageBlock("claim", one.claim))
        blocks += _compared(one) if one.methods else [PageBlock("soft", "No method has a loss.")]
        blocks.append(PageBlock("soft list", one.findings.notes))
    if data.tasks:
        over = "95 % interval over items, or over seeds if a method has several runs"
        blocks.append(heading("Downstream tasks"))
        blocks.append(PageBlock("soft", f"per cent, acc_norm if the task has it, else acc; {over}"))
        blocks.append(data.tasks)
        blocks += [PageBlock("soft list", data.task_notes)] if data.task_notes else []
    return blocks


def _compared(one: Comparison) -> list[PageItem]:
    """The tables of the terminal, and charts of the differences."""
    losses, costs, *by_source = tables(one.findings)
    every = [difference_chart(one, name) for name in METRICS]
    charts = [chart for chart in every if chart.rows]
    no_pairs = PageBlock("soft", "No pairs: no method shares a seed with the baseline.")
    at_time = equal_time_table(one.findings)
    return [
        *([] if at_time is None else _titled("Equal time", "equal time", at_time)),
        *_titled("Losses", "methods", losses, note=f". {METRICS_NOTE}"),
        *_titled("Cost", "cost of methods", costs),
        heading("Paired differences"),
        PageBlock("grid", charts) if charts else no_pairs,
        *_titled("Loss by method and source", "loss by method and source", *by_source),
    ]


def _titled(title: str, name: str, *shown: TextTable, note: str = "") -> list[PageItem]:
    """A heading, what the tables show, and the tables, which have the same title."""
    pages = [PageTable(name, own.columns, own.rows) for own in shown]
    return [heading(title), PageBlock("soft", shown[0].title + note), *pages]


def difference_chart(one: Comparison, metric: str) -> DotChart:
    """The difference of every method to the baseline."""
    rows, baseline = [], one.findings.baseline
    for index, method in enumerate(one.methods):
        if own := method.difference(metric):
            rows.append(DotRow(method.label, index, own.estimate, own.over_items))
    pale = "; pale: over validation text" if any(row.over_text for row in rows) else ""
    return DotChart(
        f"Difference to {baseline}: {metric} loss",
        f"nats, negative is better; line: 95 % interval over seeds{pale}",
        rows,
        paper_name=f"{metric} loss vs. {baseline} (nats),\n95 % interval over seeds",
    )


# The title of each section and the function that makes its items. Domains are drawn by domains.js.
SECTIONS: dict[str, tuple[str, Callable[[PageData], Sequence[object]]]] = {
    "overview": ("Overview", overview),
    "curves": ("Curves", curves),
    "domains": ("Domains", lambda data: [(r.name, r.domains) for r in data.runs if r.domains]),
    "health": ("Health", health),
    "cost": ("Cost", cost),
    "comparison": ("Comparison", comparison),
}
