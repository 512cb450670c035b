"""Tables and verdicts made of finished runs: validation losses, costs, downstream accuracies.

Means have 95 % t intervals over seeds. The standard error over items is that of one run, averaged
over the runs: all answer the same questions, so more seeds do not make it smaller.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from operator import attrgetter
from typing import Any

from dograph.compare.findings import CellFindings
from dograph.compare.tables import TextTable
from dograph.eval.evaluate import limited_tasks
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.paper import AVERAGE
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Claim,
    MetricColumn,
    Reproduction,
    RunMetric,
    Study,
    losses,
    rows_of,
    table_of,
)
from dograph.stats import PER_CENT, PER_CENT_CHANGE, Estimate


def _versus(metric: RunMetric, other: str) -> MetricColumn:
    """The difference to another method."""
    difference = partial(metric.difference, other=other)
    return MetricColumn(f"less_{other}", difference, f"vs. {other} [95 %]", "[+.3f]", other)


def _loss_columns(loss: RunMetric, other: str) -> list[MetricColumn]:
    def perplexity(label: str) -> float | None:
        mean = loss.mean(label)
        return math.exp(mean.value) if mean.num else None

    def difference(label: str) -> Estimate | None:
        return None if label == other else loss.difference(label, other)

    return [
        MetricColumn("loss_nats", loss.mean, "nats ± 95 %", "±.4f"),
        MetricColumn("ppl", perplexity, "exp", ".1f"),
        replace(_versus(loss, other), value=difference),
        MetricColumn("by_seed", loss.by_seed),
    ]


def validation_loss(study: Study) -> Reproduction:
    """tab:pretrain_results, in nats."""
    loss, methods = losses(study.findings), study.findings.methods
    printed = paper.VALIDATION_LOSS
    change = {label: value - printed[BASELINE] for label, value in printed.items()}
    perplexity = {label: math.exp(value) for label, value in printed.items()}
    over_text = {m.label: m.differences.mean.over_items for m in methods if m.differences}
    columns = [
        *_loss_columns(loss, BASELINE),
        MetricColumn("natural", losses(study.findings, "natural").mean),
        MetricColumn("over_text", over_text.get, "text [95 %]", "[+.3f]", BASELINE),
        MetricColumn("paper", printed.get, 'paper "PPL"', ".2f"),
        MetricColumn("", perplexity.get, "exp", ".1f"),
        MetricColumn("paper_difference", change.get, f"vs. {BASELINE}", "+.2f", BASELINE),
    ]
    verdicts = []
    for label, name in paper.NAMES.items():
        if label not in (BASELINE, paper.OURS):
            is_below = change[label] < 0
            says = f"{name} {'below' if is_below else 'above'} Uniform"
            claim = Claim(says, -1 if is_below else 1, label, change[label])
            verdicts.append(claim.judge_runs(loss, BASELINE))
    for label in SUBJECTS:
        for rival in (BASELINE, "dynamic-loss"):
            says = f"DoGraph below {paper.NAMES[rival]}"
            size = printed[paper.OURS] - printed[rival]
            verdicts.append(Claim(says, -1, label, size).judge_runs(loss, rival))
        verdicts.append(Claim("DoGraph lowest of the seven methods", -1, label).judge_runs(loss))
    table = table_of("validation loss, mean over sources", "method", study.rows, columns)
    return Reproduction([table], rows_of(study.rows, columns), verdicts)


def objectives(study: Study) -> Reproduction:
    """tab:opt_objectives, in nats."""
    loss, best = losses(study.findings), "uncertainty"
    printed = {name: loss for name, (_, loss) in paper.OBJECTIVES.items()}
    complexity = {name: text for name, (text, _) in paper.OBJECTIVES.items()}
    change = {name: value - printed[best] for name, value in printed.items()}
    columns = [
        *_loss_columns(loss, best),
        _versus(loss, BASELINE),
        MetricColumn("paper", printed.get, 'paper "PPL"', ".2f"),
        MetricColumn("paper_difference", change.get, f"vs. {best}", "+.2f", best),
        MetricColumn("paper_complexity", complexity.get, "complexity"),
    ]
    table = table_of("objectives of DoGraph: validation loss", "objective", study.rows, columns)
    verdicts = [
        Claim(f"{best} below {name}", -1, best, -more).judge_runs(loss, name)
        for name, more in change.items()
        if name != best
    ]
    cheapest = Claim("robust softmax has the lowest computational cost", -1, "robust")
    verdicts.append(cheapest.untested("docs/cost.md has the times of solves"))
    return Reproduction([table], rows_of(study.rows, columns), verdicts)


def num_domains(study: Study) -> Reproduction:
    """fig:cluster_granularity, a picture: a U shape with its minimum at 11."""
    loss, best = losses(study.findings), f"m{paper.BEST_NUM_DOMAINS}"
    columns = [*_loss_columns(loss, best), replace(_versus(loss, BASELINE), key="")]
    table = table_of("validation loss by number of domains m", "domains", study.rows, columns)
    verdicts = [
        Claim(f"m = {paper.BEST_NUM_DOMAINS} below m = {m}", -1, best).judge_runs(loss, f"m{m}")
        for m in paper.NUM_DOMAINS
        if m != paper.BEST_NUM_DOMAINS
    ]
    return Reproduction([table], rows_of(study.rows, columns), verdicts)


def model_scale(studies: Mapping[str, Study]) -> Reproduction:
    """fig:domain_bias, a picture: losses fall with size, and DoGraph's are the lowest."""
    by_size = {size: losses(study.findings) for size, study in studies.items()}
    columns = {size: _loss_columns(loss, BASELINE) for size, loss in by_size.items()}
    labels = next(iter(studies.values())).rows
    stored = {size: rows_of(labels, own) for size, own in columns.items()}
    rows = {label: {size: own[label] for size, own in stored.items()} for label in labels}
    tables, verdicts = [], []
    for number, what in ((0, "in nats ± 95 %"), (2, f"vs. {BASELINE} [95 %]")):
        shown = [replace(own[number], head=size) for size, own in columns.items()]
        tables.append(table_of(f"validation loss {what} by model size", "method", labels, shown))
    for label, (size, loss), rival in product(SUBJECTS, by_size.items(), (BASELINE, "regmix")):
        says = f"DoGraph below {paper.NAMES[rival]} at {size}"
        verdicts.append(Claim(says, -1, label).judge_runs(loss, rival))
    for (small, large), label in product(pairwise(by_size), labels):
        # Paired by seed: models of both sizes see the same text in the same order.
        both = RunMetric({size: by_size[size].by_seed(label) for size in (small, large)})
        claim = Claim(f"the loss of {label} falls from {small} to {large}", -1, label)
        verdicts.append(claim.judge({"": both.difference(large, small)}))
    notes = [f"models: {', '.join(studies)}; paper: GPT-2 sizes that its figure does not name"]
    return Reproduction(tables, rows, verdicts, notes)


def cost(study: Study) -> Reproduction:
    """fig:efficiency_h200: seconds and FLOPs with plans, compared with uniform and RegMix."""

    def metric(name: str, times: float = 1.0) -> RunMetric:
        own = RunMetric.read(study.findings, lambda cell: times * attrgetter(name)(cell))
        return replace(own, difference_range=(-100.0, math.inf), in_per_cent=True)

    train, plan, total = (metric(f"seconds.{part}") for part in ("train", "plan", "total"))
    flops, tokens = metric("flops.total"), study.ask.config.tokens
    hours = metric("seconds.train", paper.BUDGET_TOKENS / tokens / 3600)
    over, flops_over = (partial(own.difference, other=BASELINE) for own in (total, flops))
    columns = [
        MetricColumn("training_seconds", train.mean, "training s ± 95 %", "±.1f"),
        MetricColumn("plan_seconds", plan.mean, "plan s", ".1f"),
        MetricColumn("seconds", total.mean),
        MetricColumn("over_uniform_per_cent", over, "% over uniform [95 %]", "[+.1f]", BASELINE),
        MetricColumn("flops", flops.mean, "FLOPs", ".3g"),
        MetricColumn("flops_over_uniform_per_cent", flops_over, "% over uniform", "+.1f", BASELINE),
        MetricColumn("hours_for_the_papers_tokens", hours.mean, "h for 100B tokens", ".1f"),
    ]
    verdicts = []
    for label in SUBJECTS:
        for own, what in ((train, "training alone"), (total, "including RegMix's plan")):
            says = f"DoGraph takes more time than RegMix ({what})"
            claim = Claim(says, 1, label, paper.OVER_REGMIX, ".2f", " %")
            verdicts.append(claim.judge_runs(own, "regmix"))
    notes = [
        f"paper: {paper.HOURS} h for 100B tokens on two H200 with DoGraph; here: training alone "
        "at the speed of these runs; for clean times give --workers 1 on an idle machine"
    ]
    table = table_of("cost of a run; per cent include plans", "method", study.rows, columns)
    return Reproduction([table], rows_of(study.rows, columns), verdicts, notes)


def downstream(study: Study) -> Reproduction:
    """tab:benchmark_joint and its three siblings."""
    scores, printed = study.scores.values(), study.artefact.name
    in_paper = paper.DOWNSTREAM[printed]
    tasks = [name for name in paper.TASKS if all(name in score["tasks"] for score in scores)]
    columns: dict[str, list[MetricColumn]] = {}
    for task in (*tasks, AVERAGE):  # the metric of the last one is that of the average
        average, columns[task] = _accuracy(study, task)
    stored = {task: rows_of(study.rows, own) for task, own in columns.items()}
    rows = {label: {task: own[label] for task, own in stored.items()} for label in study.rows}
    notes = list(dict.fromkeys(note for score in scores for note in score["notes"]))
    notes += limited_tasks(scores)
    if len(tasks) < len(paper.TASKS):
        notes.append(f"averages are over {len(tasks)} tasks here and nine in the paper")
    title = f"average accuracy in per cent over {len(tasks)} of the nine tasks; paper: "
    averages = [columns[AVERAGE][n] for n in (0, 2, 1, 3, 4)]
    lines = []
    for label in study.rows:
        lines.append([label, *(columns[task][0].value(label).plain(".1f") for task in tasks)])
        if label in paper.NAMES:
            lines.append(["  paper", *(columns[task][3].text(label) for task in tasks)])
    short = [name.removesuffix("_openai").replace("arc_easy", "arc-e") for name in tasks]
    tables = [
        table_of(title + paper.MODELS[printed], "method", study.rows, averages),
        TextTable("accuracy by task, mean over seeds", ("method", *short), lines),
    ]
    size = in_paper[paper.OURS][-1] - in_paper[BASELINE][-1]
    verdicts = []
    for label in SUBJECTS:
        above = Claim("DoGraph above Uniform on average", 1, label, size, ".2f", " points")
        best = Claim("DoGraph best on average of the seven", 1, label, None, ".2f", " points")
        verdicts += [above.judge_runs(average, BASELINE), best.judge_runs(average)]
    return Reproduction(tables, rows, verdicts, notes, tasks)


def _accuracy(study: Study, task: str) -> tuple[RunMetric, list[MetricColumn]]:
    """Of a task or the average, in per cent: acc_norm of tasks that have it, else acc."""
    cells = study.findings.finished
    scores: dict[str, Any] = {}  # value and standard error, by cell
    for cell in cells:
        record = study.scores[cell.label]
        own = record["tasks"].get(task)
        scores[cell.label] = record[AVERAGE] if own is None else own[own["primary"]]

    def per_cent(cell: CellFindings) -> float:
        return 100 * float(scores[cell.label]["value"])

    def error(label: str) -> float | None:
        errors = [scores[cell.label]["se"] for cell in cells if cell.method == label]
        is_known = errors and None not in errors
        return 100 * math.fsum(errors) / len(errors) if is_known else None

    place = (*paper.TASKS, AVERAGE).index(task)
    printed = {name: row[place] for name, row in paper.DOWNSTREAM[study.artefact.name].items()}
    gain = {name: value - printed[BASELINE] for name, value in printed.items()}
    metric = RunMetric.read(study.findings, per_cent, PER_CENT, PER_CENT_CHANGE)
    return metric, [
        MetricColumn("accuracy", metric.mean, "here ± 95 %", "±.2f"),
        replace(_versus(metric, BASELINE), shape="[+.2f]"),
        MetricColumn("error_over_items", error, "s.e. items", ".2f"),
        MetricColumn("paper", printed.get, "paper", ".1f"),
        MetricColumn("", gain.get, f"vs. {BASELINE}", "+.1f", BASELINE),
    ]
