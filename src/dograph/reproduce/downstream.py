"""Artefacts beside the losses: accuracies on the nine tasks, what methods cost, their balance.

A mean has its 95 % t interval over seeds. The standard error over items is that of one run, mean
over the runs: all are asked the same questions, so more seeds do not make it smaller.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dograph.compare.findings import Findings, RunCost
from dograph.data.corpus import Corpus
from dograph.eval.balance import balance as balance_of
from dograph.eval.evaluate import EvalRequest, evaluate, find_subject
from dograph.eval.scores import Report
from dograph.eval.tasks import pick_tasks
from dograph.files import sha256_of, write_json
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.losses import number
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Reproduction,
    Study,
    TextTable,
    Values,
    Verdict,
    judge,
    judge_all,
    judge_less,
    less,
    level,
    losses,
    more_per_cent,
    untested,
    values_of,
)
from dograph.stats import PER_CENT, PER_CENT_CHANGE

AVERAGE = "average"
Score = Mapping[str, Any]  # eval.json
Errors = Mapping[str, Mapping[str, float | None]]  # by method and task

in_points = partial(less, ends=PER_CENT_CHANGE)  # an accuracy less another's


def evaluate_cells(
    findings: Findings, request: EvalRequest, corpus: Corpus, report: Report
) -> dict[str, Score]:
    """The result of every finished cell, by label; what is there and was asked alike is kept."""
    scores: dict[str, Score] = {}
    cells = findings.finished
    for count, cell in enumerate(cells, start=1):
        subject = find_subject(cell.run)
        file = subject.result_file
        assert file is not None, "a cell is a run, which keeps its result"
        found = kept(file, request, findings.config["data"]["seq_len"], Path(subject.model))
        if found is None:
            report(f"scoring {cell.label}", count, len(cells))
            # Nine tasks of every model would fill pages; it is told which model is scored.
            found = evaluate(subject, request, corpus, lambda stage, done, total: None)
            write_json(file, found)
        scores[cell.label] = found
    return scores


def kept(file: Path, request: EvalRequest, seq_len: int, model: Path) -> Score | None:
    """A complete result of the same request and of these weights, else None.

    Batch size and device do not count. Where no `max_length` is asked for, a run is shown as many
    tokens as it was trained on. A cell that was trained again in its folder has other weights than
    those whose digests the result holds.
    """
    if not file.is_file():
        return None
    try:
        found: Score = json.loads(file.read_text(encoding="utf-8"))
        made = found["provenance"]
        there = [made[name] for name in ("scorer", "benchmarks", "limit", "dtype", "max_length")]
        tasks, weights = list(found["tasks"]), made["weights"]
        complete = found["format"] == "dograph-eval" and "average" in found
    except (ValueError, KeyError, TypeError):
        return None
    folder = None if request.benchmarks is None else str(request.benchmarks)
    length = request.max_length or seq_len
    asked = [request.using, folder, request.limit, request.dtype, length]
    wanted = [task.name for task in pick_tasks(list(request.tasks))]
    if not complete or there != asked or tasks != wanted:
        return None
    # Digests last: they read the whole model.
    digests = {file.name: sha256_of(file) for file in sorted(model.glob("*.safetensors"))}
    return found if weights == (digests or None) else None


def downstream(study: Study) -> Reproduction:
    """tab:benchmark_joint and its three siblings."""
    findings, scores, labels = study.only, study.scores, study.rows
    table = paper.DOWNSTREAM[study.artefact.name]
    tasks = [name for name in paper.TASKS if all(name in s["tasks"] for s in scores.values())]
    values = {name: accuracies(findings, scores, name) for name in (*tasks, AVERAGE)}
    errors = {label: _item_errors(findings, scores, label) for label in labels}
    data = {
        label: {
            name: {
                "accuracy": level(values[name], label, PER_CENT).record(),
                "less_uniform": in_points(values[name], label, BASELINE).record(),
                "error_over_items": errors[label].get(name),
                "paper": table.score(label, name),
            }
            for name in values
        }
        for label in labels
    }
    sheets = [
        _average_sheet(values[AVERAGE], labels, table, errors, len(tasks)),
        _task_sheet(values, labels, tasks, table),
    ]
    if values[AVERAGE].get(paper.OURS):
        rows = []
        for name in tasks:
            ours, theirs = (table.rows[label] for label in (paper.OURS, BASELINE))
            at = paper.TASKS.index(name)
            gain = in_points(values[name], paper.OURS, BASELINE).text("+.2f")
            error = number(errors[paper.OURS].get(name), ".2f")
            rows.append([name, gain, error, f"{ours[at] - theirs[at]:+.1f}"])
        columns = ("task", "here [95 %]", "s.e. items (one method)", "paper")
        sheets.append(TextTable(f"{paper.OURS} less {BASELINE} by task", columns, rows))
    notes = list(dict.fromkeys(note for score in scores.values() for note in score["notes"]))
    asked = [pair for score in scores.values() for pair in score["tasks"].items()]
    short = {
        name: f"{name} {task['items']:,} of {task['available']:,}"
        for name, task in asked
        if "available" in task and task["items"] < task["available"]
    }
    if short:
        notes.append(f"items asked, of those there are: {', '.join(short.values())}")
    if len(tasks) < len(paper.TASKS):
        notes.append(f"averages are over {len(tasks)} tasks here and nine in the paper")
    verdicts = _accuracy_verdicts(values, tasks, table)
    return Reproduction(sheets, {"methods": data, "tasks": tasks}, verdicts, notes)


def accuracies(findings: Findings, scores: Mapping[str, Score], name: str) -> Values:
    """A task's accuracy in per cent, or the average's: acc_norm where there is one, else acc."""
    return values_of(
        findings, lambda cell: 100 * float(_primary(scores[cell.label], name)["value"])
    )


def _primary(score: Score, name: str) -> Mapping[str, Any]:
    task = score["tasks"].get(name)
    found: Mapping[str, Any] = score["average"] if name == AVERAGE else task[task["primary"]]
    return found


def _item_errors(
    findings: Findings, scores: Mapping[str, Score], label: str
) -> dict[str, float | None]:
    own = [scores[cell.label] for cell in findings.finished if cell.method == label]
    found: dict[str, float | None] = {}
    for name in (*own[0]["tasks"], AVERAGE) if own else ():
        errors = [_primary(score, name)["se"] for score in own]
        found[name] = None if None in errors else 100 * math.fsum(errors) / len(own)
    return found


def _average_sheet(
    values: Values,
    labels: Sequence[str],
    table: paper.ScoreTable,
    errors: Errors,
    num_tasks: int,
) -> TextTable:
    rows = []
    for label in labels:
        printed, first = table.averages.get(label), label == BASELINE
        theirs = None if printed is None else printed - table.averages[BASELINE]
        rows.append(
            [
                label,
                level(values, label, PER_CENT).plus_minus(".2f"),
                number(errors[label].get(AVERAGE), ".2f"),
                "" if first else in_points(values, label, BASELINE).text("+.2f"),
                number(printed, ".1f"),
                "" if first else number(theirs, "+.1f"),
            ]
        )
    return TextTable(
        f"average accuracy in per cent over {num_tasks} of the nine tasks, beside {table.model}",
        ("method", "here ± 95 %", "s.e. items", "less uniform [95 %]", "paper", "less uniform"),
        rows,
    )


def _task_sheet(
    values: Mapping[str, Values],
    labels: Sequence[str],
    tasks: Sequence[str],
    table: paper.ScoreTable,
) -> TextTable:
    rows = []
    for label in labels:
        rows.append([label, *(level(values[name], label).plain(".1f") for name in tasks)])
        if label in table.rows:
            rows.append(["  paper", *(number(table.score(label, name), ".1f") for name in tasks)])
    short = [name.removesuffix("_openai").replace("arc_easy", "arc-e") for name in tasks]
    return TextTable("accuracy by task, mean over seeds", ("method", *short), rows)


def _accuracy_verdicts(
    values: Mapping[str, Values], tasks: Sequence[str], table: paper.ScoreTable
) -> list[Verdict]:
    found = []
    average = values[AVERAGE]
    gain = table.averages[paper.OURS] - table.averages[BASELINE]
    rivals = [name for name in paper.NAMES if name != paper.OURS and average.get(name)]
    over, best = "DoGraph above Uniform on average", "DoGraph best on average of the seven"
    for label in SUBJECTS:
        if not average.get(label) or BASELINE not in rivals:
            why = f"no finished run of {label}"
            found += [untested(says, why, label) for says in (over, best)]
            continue
        told: dict[str, Any] = {"sign": 1, "shape": ".2f", "unit": " points", "of": label}
        found.append(judge(over, in_points(average, label, BASELINE), paper=gain, **told))
        figures = {name: in_points(average, label, name, len(rivals)) for name in rivals}
        found.append(judge_all(best, figures, **told))
        # The gain over Uniform on reasoning less that on reading comprehension, seed by seed.
        says = "DoGraph gains more on reasoning than on reading comprehension"
        groups = {"reasoning": paper.REASONING, "reading": paper.READING}
        if not all(set(tasks) & set(group) for group in groups.values()):
            found.append(untested(says, "its tasks were not all asked", label))
            continue
        gains: dict[str, dict[int, float]] = {}
        for name, group in groups.items():
            own = [values[task] for task in group if task in tasks]
            gains[name] = {
                seed: math.fsum(v[label][seed] - v[BASELINE][seed] for v in own) / len(own)
                for seed in own[0][label]
                if seed in own[0][BASELINE]
            }
        ours = less(gains, "reasoning", "reading", ends=(-200.0, 200.0))  # each: -100 to 100
        found.append(judge(says, ours, **told))
    return found


def cost(study: Study) -> Reproduction:
    """fig:efficiency_h200: seconds and FLOPs with plans counted, over uniform and over RegMix."""
    findings = study.only
    seconds = {part: _spent(findings, part) for part in ("train", "plan", "total")}
    flops: dict[str, RunCost] = {method.label: method.flops for method in findings.methods}
    train = findings.config["train"]
    tokens = train["steps"] * train["batch_size"] * findings.config["data"]["seq_len"]
    rows, data = [], {}
    for label in study.rows:
        over = more_per_cent(seconds["total"], label, BASELINE)
        ratio = 100 * (flops[label].total / flops[BASELINE].total - 1)
        trained = level(seconds["train"], label)
        # To train on the paper's tokens at the speed of these runs.
        hours = paper.BUDGET_TOKENS / tokens * trained.value / 3600 if trained.num else None
        rows.append(
            [
                label,
                trained.plus_minus(".1f"),
                level(seconds["plan"], label).plain(".1f"),
                "" if label == BASELINE else over.text("+.1f"),
                f"{flops[label].total:.3g}",
                "" if label == BASELINE else f"{ratio:+.1f}",
                number(hours, ".1f"),
            ]
        )
        regmix = {p: more_per_cent(seconds[p], label, "regmix").record() for p in seconds}
        data[label] = {
            "seconds": {part: level(seconds[part], label).record() for part in seconds},
            "over_uniform_per_cent": over.record(),
            "over_regmix_per_cent": regmix["total"],
            "training_over_regmix_per_cent": regmix["train"],
            "flops": flops[label],
            "flops_over_uniform_per_cent": ratio,
            "hours_for_the_papers_tokens": hours,
        }
    verdicts = []
    claimed: dict[str, Any] = {"sign": 1, "paper": paper.OVER_REGMIX, "shape": ".2f", "unit": " %"}
    claimed["difference"] = more_per_cent
    for label in SUBJECTS:
        claimed["why"] = f"no finished run of {label} or of regmix"
        for part, told in (("train", "training alone"), ("total", "RegMix's plan counted")):
            says = f"DoGraph takes more time than RegMix ({told})"
            verdicts.append(judge_less(seconds[part], label, "regmix", says, **claimed))
    budget = f"{paper.BUDGET_TOKENS / 1e9:.0f}B tokens"
    columns = ("method", "training s ± 95 %", "plan s", "% over uniform [95 %]", "FLOPs")
    notes = [
        f"paper: {paper.HOURS} h for {budget} on two H200 with "
        "DoGraph; the last column is training alone on this machine's device, at the speed seen",
        "times are what training took beside whatever else ran; for clean ones give --workers 1 on "
        "an idle machine",
    ]
    title = "what a run takes; per cent with plans counted"
    sheet = TextTable(title, (*columns, "% over", f"h for {budget}"), rows)
    return Reproduction([sheet], {"methods": data}, verdicts, notes)


def _spent(findings: Findings, part: str) -> Values:
    return values_of(findings, lambda cell: float(getattr(cell.seconds, part)))


def balance(study: Study) -> Reproduction:
    """How far apart the sources' losses are, the balance that the paper speaks of in words."""
    findings = study.only
    figures: dict[str, Values] = {
        "spread": values_of(findings, lambda cell: balance_of(cell.losses).spread),
        "gap": values_of(findings, lambda cell: balance_of(cell.losses).gap),
        "worst": losses(findings, "worst"),
    }
    rows, data = [], {}
    for label in study.rows:
        levels = {name: level(values, label) for name, values in figures.items()}
        changes = {name: less(values, label, BASELINE) for name, values in figures.items()}
        cells = [label]
        for name in ("spread", "gap"):
            told = "" if label == BASELINE else changes[name].text("+.3f")
            cells += [levels[name].plus_minus(".3f"), told]
        rows.append([*cells, levels["worst"].plus_minus(".3f")])
        data[label] = {name: figure.record() for name, figure in levels.items()} | {
            f"{name}_less_uniform": figure.record() for name, figure in changes.items()
        }
    verdicts = []
    for label in SUBJECTS:
        for name in ("spread", "gap"):
            says = f"DoGraph more balanced over sources than Uniform ({name})"
            why = f"no finished run of {label}"
            verdicts.append(judge_less(figures[name], label, BASELINE, says, why=why, sign=-1))
    change = "less uniform [95 %]"
    columns = ("method", "spread ± 95 %", change, "gap ± 95 %", change, "worst ± 95 %")
    title = "losses over sources in nats: deviation, worst less best, worst"
    notes = [
        "sources differ in how well any model can predict them: what counts is the difference "
        "to uniform",
        "the paper speaks of balance and prints no figure of it",
    ]
    return Reproduction([TextTable(title, columns, rows)], {"methods": data}, verdicts, notes)
