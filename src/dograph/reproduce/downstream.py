"""The four tables of accuracies: every cell's model on the nine tasks, over seeds.

A mean has its 95 % t interval over seeds. The standard error over items is that of one run, mean
over the runs: all are asked the same questions, so more seeds do not make it smaller.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dograph.compare.findings import Findings
from dograph.data.corpus import Corpus
from dograph.eval.balance import balance as balance_of
from dograph.eval.evaluate import Request, evaluate, find_subject
from dograph.eval.harness import Report
from dograph.eval.tasks import pick_tasks
from dograph.files import sha256_of, write_json
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE, displayed
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Outcome,
    Sheet,
    Study,
    Values,
    Verdict,
    judge,
    judge_all,
    less,
    level,
    losses,
    more_per_cent,
    present,
    untested,
    values_of,
)
from dograph.stats import PER_CENT, PER_CENT_CHANGE, Estimate

AVERAGE = "average"
Score = Mapping[str, Any]  # eval.json


def evaluate_cells(
    findings: Findings, request: Request, corpus: Corpus, report: Report
) -> dict[str, Score]:
    """The result of every finished cell, by label; what is there and was asked alike is kept."""
    scores: dict[str, Score] = {}
    cells = [cell for cell in findings["cells"] if cell["error"] is None]
    for number, cell in enumerate(cells, start=1):
        subject = find_subject(cell["run"])
        file = subject.result_file
        assert file is not None, "a cell is a run, which keeps its result"
        found = kept(file, request, findings["config"]["data"]["seq_len"], Path(subject.model))
        if found is None:
            report(f"scoring {cell['label']}", number, len(cells))
            found = evaluate(subject, request, corpus, _unheard).record
            write_json(file, found)
        scores[cell["label"]] = found
    return scores


def _unheard(stage: str, done: int, total: int) -> None:
    """Nine tasks of every model would fill pages; it is told which model is scored."""


def kept(file: Path, request: Request, seq_len: int, model: Path) -> Score | None:
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
        there = [made[name] for name in ("scorer", "benchmarks", "limit", "dtype")]
        tasks = list(found["tasks"])
        complete = found["format"] == "dograph-eval" and "average" in found
        length, weights = made["max_length"], made["weights"]
    except (ValueError, KeyError, TypeError):
        return None
    folder = None if request.benchmarks is None else str(request.benchmarks)
    asked = [request.using, folder, request.limit, request.dtype]
    wanted = [task.name for task in pick_tasks(list(request.tasks))]
    same = there == asked and tasks == wanted and length == (request.max_length or seq_len)
    # Digests last: they read the whole model.
    return found if complete and same and weights == _digests(model) else None


def _digests(model: Path) -> dict[str, str] | None:
    """Of the weights in a folder, as `evaluate` stores them; None where there are none."""
    return {file.name: sha256_of(file) for file in sorted(model.glob("*.safetensors"))} or None


def downstream(study: Study) -> Outcome:
    """tab:benchmark_joint and its three siblings."""
    findings, table = study.only, paper.DOWNSTREAM[study.artefact.name]
    tasks = [name for name in paper.TASKS if all(name in s["tasks"] for s in study.scores.values())]
    values = {name: accuracies(findings, study.scores, name) for name in (*tasks, AVERAGE)}
    labels = displayed([m["label"] for m in findings["methods"]])
    errors = {label: _item_errors(findings, study.scores, label) for label in labels}
    data = {
        label: {
            name: {
                "accuracy": level(values[name], label, PER_CENT).record(),
                "less_uniform": _over(values[name], label, BASELINE).record(),
                "error_over_items": errors[label].get(name),
                "paper": _printed(table, label, name),
            }
            for name in values
        }
        for label in labels
    }
    sheets = [
        _average_sheet(values[AVERAGE], labels, table, errors, len(tasks)),
        _task_sheet(values, labels, tasks, table),
        *_gain_sheets(values, tasks, table, errors),
    ]
    notes = _notes(study.scores, len(tasks))
    verdicts = _verdicts(findings, values, tasks, table)
    return Outcome(sheets, {"methods": data, "tasks": tasks}, verdicts, notes)


def accuracies(findings: Findings, scores: Mapping[str, Score], name: str) -> Values:
    """A task's accuracy in per cent, or the average's: acc_norm where there is one, else acc."""

    def read(cell: Mapping[str, Any]) -> float:
        return 100 * float(_primary(scores[cell["label"]], name)["value"])

    return values_of(findings, read)


def _primary(score: Score, name: str) -> Mapping[str, Any]:
    if name == AVERAGE:
        average: Mapping[str, Any] = score["average"]
        return average
    task = score["tasks"][name]
    found: Mapping[str, Any] = task[task["primary"]]
    return found


def _item_errors(
    findings: Findings, scores: Mapping[str, Score], label: str
) -> dict[str, float | None]:
    own = [
        scores[cell["label"]]
        for cell in findings["cells"]
        if cell["method"] == label and cell["error"] is None
    ]
    if not own:
        return {}
    found: dict[str, float | None] = {}
    for name in (*own[0]["tasks"], AVERAGE):
        errors = [_primary(score, name)["se"] for score in own]
        known = [error for error in errors if error is not None]
        found[name] = 100 * math.fsum(known) / len(known) if len(known) == len(own) else None
    return found


def _average_sheet(
    values: Values,
    labels: Sequence[str],
    table: paper.Scores,
    errors: Mapping[str, Mapping[str, float | None]],
    num_tasks: int,
) -> Sheet:
    rows = []
    for label in labels:
        printed = table.averages.get(label)
        theirs = None if printed is None else printed - table.averages[BASELINE]
        first = label == BASELINE
        rows.append(
            [
                label,
                level(values, label, PER_CENT).plus_minus(".2f"),
                _plain(errors[label].get(AVERAGE), ".2f"),
                "" if first else _over(values, label, BASELINE).text("+.2f"),
                _plain(printed, ".1f"),
                "" if first else _plain(theirs, "+.1f"),
            ]
        )
    return Sheet(
        f"average accuracy in per cent over {num_tasks} of the nine tasks, beside {table.model}",
        ("method", "here ± 95 %", "s.e. items", "less uniform [95 %]", "paper", "less uniform"),
        rows,
    )


def _task_sheet(
    values: Mapping[str, Values], labels: Sequence[str], tasks: Sequence[str], table: paper.Scores
) -> Sheet:
    rows = []
    for label in labels:
        rows.append([label, *(level(values[name], label).plain(".1f") for name in tasks)])
        if label in table.tasks:
            rows.append(["  paper", *(_plain(table.score(label, name), ".1f") for name in tasks)])
    short = [name.removesuffix("_openai").replace("arc_easy", "arc-e") for name in tasks]
    return Sheet("accuracy by task, mean over seeds", ("method", *short), rows)


def _gain_sheets(
    values: Mapping[str, Values],
    tasks: Sequence[str],
    table: paper.Scores,
    errors: Mapping[str, Mapping[str, float | None]],
) -> list[Sheet]:
    if paper.OURS not in values[AVERAGE] or not values[AVERAGE][paper.OURS]:
        return []
    rows = []
    for name in tasks:
        theirs = table.tasks[paper.OURS], table.tasks[BASELINE]
        at = paper.TASKS.index(name)
        rows.append(
            [
                name,
                _over(values[name], paper.OURS, BASELINE).text("+.2f"),
                _plain(errors[paper.OURS].get(name), ".2f"),
                f"{theirs[0][at] - theirs[1][at]:+.1f}",
            ]
        )
    columns = ("task", "here [95 %]", "s.e. items (one method)", "paper")
    return [Sheet(f"{paper.OURS} less {BASELINE} by task", columns, rows)]


def _verdicts(
    findings: Findings, values: Mapping[str, Values], tasks: Sequence[str], table: paper.Scores
) -> list[Verdict]:
    found = []
    average, printed = values[AVERAGE], table.averages
    gain = printed[paper.OURS] - printed[BASELINE]
    rivals = present(findings, [name for name in paper.NAMES if name != paper.OURS])
    over, best = "DoGraph above Uniform on average", "DoGraph best on average of the seven"
    for label in SUBJECTS:
        if not present(findings, [label]) or BASELINE not in rivals:
            why = f"no finished run of {label}"
            found += [untested(says, why, label) for says in (over, best)]
            continue
        told: dict[str, Any] = {"sign": 1, "shape": ".2f", "unit": " points", "of": label}
        found.append(judge(over, _over(average, label, BASELINE), paper=gain, **told))
        figures = {name: _over(average, label, name, len(rivals)) for name in rivals}
        found.append(judge_all(best, figures, **told))
        found.append(_reasoning(values, tasks, label))
    return found


def _reasoning(values: Mapping[str, Values], tasks: Sequence[str], label: str) -> Verdict:
    """The gain over Uniform on reasoning less that on reading comprehension, seed by seed."""
    says = "DoGraph gains more on reasoning than on reading comprehension"
    groups = {
        name: [task for task in group if task in tasks]
        for name, group in (("reasoning", paper.REASONING), ("reading", paper.READING))
    }
    if not all(groups.values()):
        return untested(says, "its tasks were not all asked", label)
    gains: dict[str, dict[int, float]] = {}
    for name, group in groups.items():
        seeds = [s for s in values[group[0]][label] if s in values[group[0]][BASELINE]]
        gains[name] = {
            seed: math.fsum(values[t][label][seed] - values[t][BASELINE][seed] for t in group)
            / len(group)
            for seed in seeds
        }
    ours = less(gains, "reasoning", "reading", ends=(-200.0, 200.0))  # gains reach from -100 to 100
    return judge(says, ours, sign=1, shape=".2f", unit=" points", of=label)


def _notes(scores: Mapping[str, Score], num_tasks: int) -> list[str]:
    notes = list(dict.fromkeys(note for score in scores.values() for note in score["notes"]))
    asked = [pair for score in scores.values() for pair in score["tasks"].items()]
    short = {
        name: f"{name} {task['items']:,} of {task['available']:,}"
        for name, task in asked
        if "available" in task and task["items"] < task["available"]
    }
    if short:
        notes.append(f"items asked, of those there are: {', '.join(short.values())}")
    if num_tasks < len(paper.TASKS):
        notes.append(f"averages are over {num_tasks} tasks here and nine in the paper")
    return notes


def _over(values: Values, label: str, other: str, family: int = 1) -> Estimate:
    """An accuracy less another's, in points."""
    return less(values, label, other, family, ends=PER_CENT_CHANGE)


def _printed(table: paper.Scores, label: str, name: str) -> float | None:
    return table.averages.get(label) if name == AVERAGE else table.score(label, name)


def _plain(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)


# fig:efficiency_h200: what methods cost.


def cost(study: Study) -> Outcome:
    """Seconds and FLOPs with plans counted, over uniform and over RegMix."""
    findings = study.only
    labels = displayed([m["label"] for m in findings["methods"]])
    seconds = {part: _spent(findings, "seconds", part) for part in ("train", "plan", "total")}
    flops = {m["label"]: m["flops"] for m in findings["methods"]}
    rows, data = [], {}
    for label in labels:
        over = more_per_cent(seconds["total"], label, BASELINE)
        ratio = 100 * (flops[label]["total"] / flops[BASELINE]["total"] - 1)
        trained = level(seconds["train"], label)
        hours = _hours(findings, trained.value) if trained.num else None
        rows.append(
            [
                label,
                trained.plus_minus(".1f"),
                level(seconds["plan"], label).plain(".1f"),
                "" if label == BASELINE else over.text("+.1f"),
                f"{flops[label]['total']:.3g}",
                "" if label == BASELINE else f"{ratio:+.1f}",
                "" if hours is None else f"{hours:.1f}",
            ]
        )
        data[label] = {
            "seconds": {part: level(seconds[part], label).record() for part in seconds},
            "over_uniform_per_cent": over.record(),
            "over_regmix_per_cent": more_per_cent(seconds["total"], label, "regmix").record(),
            "training_over_regmix_per_cent": more_per_cent(
                seconds["train"], label, "regmix"
            ).record(),
            "flops": flops[label],
            "flops_over_uniform_per_cent": ratio,
            "hours_for_the_papers_tokens": hours,
        }
    columns = ("method", "training s ± 95 %", "plan s", "% over uniform [95 %]", "FLOPs")
    sheet = Sheet(
        "what a run takes; per cent with plans counted",
        (*columns, "% over", f"h for {paper.BUDGET_TOKENS / 1e9:.0f}B tokens"),
        rows,
    )
    notes = [
        f"paper: {paper.HOURS} h for {paper.BUDGET_TOKENS / 1e9:.0f}B tokens on two H200 with "
        "DoGraph; the last column is training alone on this machine's device, at the speed seen",
        "times are what training took beside whatever else ran; for clean ones give --workers 1 on "
        "an idle machine",
    ]
    return Outcome([sheet], {"methods": data}, _cost_verdicts(findings, seconds), notes)


def _cost_verdicts(findings: Findings, seconds: Mapping[str, Values]) -> list[Verdict]:
    found = []
    for label in SUBJECTS:
        for part, told in (("train", "training alone"), ("total", "RegMix's plan counted")):
            says = f"DoGraph takes more time than RegMix ({told})"
            if len(present(findings, [label, "regmix"])) < 2:
                found.append(untested(says, f"no finished run of {label} or of regmix", label))
                continue
            over = more_per_cent(seconds[part], label, "regmix")
            found.append(
                judge(says, over, sign=1, paper=paper.OVER_REGMIX, shape=".2f", unit=" %", of=label)
            )
    return found


def _spent(findings: Findings, kind: str, part: str) -> Values:
    return values_of(findings, lambda cell: float(cell[kind][part]))


def _hours(findings: Findings, seconds: float) -> float:
    """To train on the paper's tokens at the speed of these runs."""
    train, data = findings["config"]["train"], findings["config"]["data"]
    tokens = train["steps"] * train["batch_size"] * data["seq_len"]
    return float(paper.BUDGET_TOKENS / tokens * seconds / 3600)


# How far apart the sources' losses are: the balance that the paper speaks of.


def balance(study: Study) -> Outcome:
    """Losses over sources: their standard deviation and the gap from best to worst."""
    findings = study.only
    figures: dict[str, Values] = {
        "spread": values_of(findings, lambda cell: balance_of(cell["losses"]).spread),
        "gap": values_of(findings, lambda cell: balance_of(cell["losses"]).gap),
        "worst": losses(findings, "worst"),
    }
    rows, data = [], {}
    for label in displayed([m["label"] for m in findings["methods"]]):
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
    change = "less uniform [95 %]"
    columns = ("method", "spread ± 95 %", change, "gap ± 95 %", change, "worst ± 95 %")
    title = "losses over sources in nats: deviation, worst less best, worst"
    sheet = Sheet(title, columns, rows)
    notes = [
        "sources differ in how well any model can predict them: what counts is the difference "
        "to uniform",
        "the paper speaks of balance and prints no figure of it",
    ]
    return Outcome([sheet], {"methods": data}, _verdicts_of_balances(findings, figures), notes)


def _verdicts_of_balances(findings: Findings, figures: dict[str, Values]) -> list[Verdict]:
    found = []
    for label in SUBJECTS:
        for name in ("spread", "gap"):
            says = f"DoGraph more balanced over sources than Uniform ({name})"
            if len(present(findings, [label, BASELINE])) < 2:
                found.append(untested(says, f"no finished run of {label}", label))
                continue
            change = less(figures[name], label, BASELINE)
            found.append(judge(says, change, sign=-1, of=label))
    return found
