"""Artefacts beside the losses: accuracies on the nine tasks, and what methods cost.

A mean has its 95 % t interval over seeds. The standard error over items is that of one run, mean
over the runs: all are asked the same questions, so more seeds do not make it smaller.
"""

import json
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from dograph.compare.findings import CellFindings, Findings
from dograph.data.corpus import Corpus
from dograph.eval.evaluate import EvalRequest, evaluate, find_subject
from dograph.eval.scores import Report
from dograph.eval.tasks import pick_tasks
from dograph.files import sha256_of, write_json
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.verdicts import (
    AVERAGE,
    SUBJECTS,
    CellScores,
    Claim,
    Figure,
    FigureColumn,
    Reproduction,
    Rows,
    Study,
    TextTable,
    table_of,
)
from dograph.stats import PER_CENT, PER_CENT_CHANGE

GROUPS = {"reasoning": paper.REASONING, "reading": paper.READING}


def evaluate_cells(
    findings: Findings, request: EvalRequest, corpus: Corpus, report: Report
) -> dict[str, CellScores]:
    """The result of every finished cell, by label; what is there and was asked alike is kept."""
    scores: dict[str, CellScores] = {}
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
        scores[cell.label] = CellScores.of_json(found)
    return scores


def kept(file: Path, request: EvalRequest, seq_len: int, model: Path) -> Mapping[str, Any] | None:
    """A complete result of the same request and of these weights, else None.

    Batch size and device do not count. Where no `max_length` is asked for, a run is shown as many
    tokens as it was trained on. A cell that was trained again in its folder has other weights than
    those whose digests the result holds.
    """
    if not file.is_file():
        return None
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
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
    findings, scores, table = study.only, study.scores, study.artefact.name
    tasks = [name for name in paper.TASKS if all(name in s.error for s in scores.values())]
    rows: Rows = {label: {} for label in study.rows}
    accuracy: dict[str, Figure] = {}
    for name in (*tasks, AVERAGE):

        def scored(cell: CellFindings, name: str = name) -> float:
            return scores[cell.label].accuracy[name]

        accuracy[name] = Figure.read(findings, scored, PER_CENT, PER_CENT_CHANGE)
        for label, row in rows.items():
            own = [scores[c.label].error[name] for c in findings.finished if c.method == label]
            known = [error for error in own if error is not None]
            complete = known and len(known) == len(own)
            row[name] = {
                "accuracy": accuracy[name].level(label),
                "less_uniform": accuracy[name].less(label, BASELINE),
                "error_over_items": 100 * math.fsum(known) / len(own) if complete else None,
                "paper": paper.score(table, label, name),
            }
    notes = list(dict.fromkeys(note for score in scores.values() for note in score.notes))
    limited = {name: told for score in scores.values() for name, told in score.limited.items()}
    if limited:
        notes.append(f"items asked, of those there are: {', '.join(limited.values())}")
    if len(tasks) < len(paper.TASKS):
        notes.append(f"averages are over {len(tasks)} tasks here and nine in the paper")
    sheets = _accuracy_sheets(rows, tasks, table)
    if paper.OURS not in accuracy[AVERAGE]:
        del sheets[-1]
    verdicts = _accuracy_verdicts(accuracy, tasks, table)
    return Reproduction(sheets, rows, verdicts, notes, tasks)


def _accuracy_sheets(rows: Rows, tasks: Sequence[str], table: str) -> list[TextTable]:
    """The average by method, every task by method, and what the paper's method gains by task."""

    def less_uniform(label: str, name: str) -> dict[str, float | None]:
        ours, base = (paper.score(table, who, name) for who in (label, BASELINE))
        return {"gain": None if ours is None or base is None else ours - base}

    title = f"average accuracy in per cent over {len(tasks)} of the nine tasks, beside"
    columns = [
        FigureColumn("here ± 95 %", "accuracy", "±.2f"),
        FigureColumn("s.e. items", "error_over_items", ".2f"),
        FigureColumn("less uniform [95 %]", "less_uniform", "[+.2f]", BASELINE),
        FigureColumn("paper", "paper", ".1f"),
        FigureColumn("less uniform", "gain", "+.1f", BASELINE),
    ]
    average = {label: row[AVERAGE] | less_uniform(label, AVERAGE) for label, row in rows.items()}
    lines = []
    for label, row in rows.items():
        lines.append([label, *(row[name]["accuracy"].plain(".1f") for name in tasks)])
        if label in paper.NAMES:
            lines.append(["  paper", *(f"{row[name]['paper']:.1f}" for name in tasks)])
    short = [name.removesuffix("_openai").replace("arc_easy", "arc-e") for name in tasks]
    gains = {
        name: rows[paper.OURS][name] | less_uniform(paper.OURS, name)
        for name in tasks
        if paper.OURS in rows
    }
    columns_of_gains = [
        FigureColumn("here [95 %]", "less_uniform", "[+.2f]"),
        FigureColumn("s.e. items (one method)", "error_over_items", ".2f"),
        FigureColumn("paper", "gain", "+.1f"),
    ]
    return [
        table_of(f"{title} {paper.MODELS[table]}", "method", average, columns),
        TextTable("accuracy by task, mean over seeds", ("method", *short), lines),
        table_of(f"{paper.OURS} less {BASELINE} by task", "task", gains, columns_of_gains),
    ]


def _accuracy_verdicts(
    accuracy: Mapping[str, Figure], tasks: Sequence[str], table: str
) -> list[Claim]:
    found, average = [], accuracy[AVERAGE]
    size = paper.averages(table)[paper.OURS] - paper.averages(table)[BASELINE]
    for label in SUBJECTS:

        def claim(says: str, paper: float | None = None, of: str = label) -> Claim:
            return Claim(says, 1, of, paper, ".2f", " points")

        over = claim("DoGraph above Uniform on average", size)
        best = claim("DoGraph best on average of the seven")
        if label not in average or BASELINE not in average:
            found += [one.untested(f"no finished run of {label}") for one in (over, best)]
            continue
        found += [over.judge_less(average, BASELINE), best.judge_best(average)]
        # The gain over Uniform on reasoning less that on reading comprehension, seed by seed.
        more = claim("DoGraph gains more on reasoning than on reading comprehension")
        if not all(set(tasks) & set(group) for group in GROUPS.values()):
            found.append(more.untested("its tasks were not all asked"))
            continue
        gains: dict[str, dict[int, float]] = {}
        for name, group in GROUPS.items():
            pairs = [(f.of(label), f.of(BASELINE)) for t, f in accuracy.items() if t in group]
            gains[name] = {
                seed: math.fsum(own[seed] - base[seed] for own, base in pairs) / len(pairs)
                for seed in average.of(label)
                if seed in average.of(BASELINE)
            }
        gain = Figure(gains, ends_of_change=(-200.0, 200.0))  # each: -100 to 100
        found.append(more.judge(gain.less("reasoning", "reading")))
    return found


def cost(study: Study) -> Reproduction:
    """fig:efficiency_h200: seconds and FLOPs with plans counted, over uniform and over RegMix."""
    findings, per_cent = study.only, Figure.more_per_cent
    parts = ("train", "plan", "total")
    seconds = {part: Figure.read(findings, attrgetter(f"seconds.{part}")) for part in parts}
    train, total = seconds["train"], seconds["total"]
    flops = {method.label: method.flops for method in findings.methods}
    run = findings.config["train"]
    tokens = run["steps"] * run["batch_size"] * findings.config["data"]["seq_len"]
    times = paper.BUDGET_TOKENS / tokens  # to train on the paper's tokens at the speed seen
    rows: Rows = {}
    for label in study.rows:
        levels = {part: figure.level(label) for part, figure in seconds.items()}
        rows[label] = {
            "seconds": levels,
            "over_uniform_per_cent": per_cent(total, label, BASELINE),
            "over_regmix_per_cent": per_cent(total, label, "regmix"),
            "training_over_regmix_per_cent": per_cent(train, label, "regmix"),
            "flops": flops[label],
            "flops_over_uniform_per_cent": 100 * (flops[label].total / flops[BASELINE].total - 1),
            "hours_for_the_papers_tokens": times * levels["train"].value / 3600
            if label in train
            else None,
        }
    budget = f"{paper.BUDGET_TOKENS / 1e9:.0f}B tokens"
    columns = [
        FigureColumn("training s ± 95 %", "seconds", "±.1f", of=itemgetter("train")),
        FigureColumn("plan s", "seconds", ".1f", of=itemgetter("plan")),
        FigureColumn("% over uniform [95 %]", "over_uniform_per_cent", "[+.1f]", BASELINE),
        FigureColumn("FLOPs", "flops", ".3g", of=attrgetter("total")),
        FigureColumn("% over", "flops_over_uniform_per_cent", "+.1f", BASELINE),
        FigureColumn(f"h for {budget}", "hours_for_the_papers_tokens", ".1f"),
    ]
    sheet = table_of("what a run takes; per cent with plans counted", "method", rows, columns)
    verdicts = []
    for label in SUBJECTS:
        why = f"no finished run of {label} or of regmix"
        for figure, told in ((train, "training alone"), (total, "RegMix's plan counted")):
            says = f"DoGraph takes more time than RegMix ({told})"
            claim = Claim(says, 1, label, paper.OVER_REGMIX, ".2f", " %")
            verdicts.append(claim.judge_less(figure, "regmix", per_cent, why))
    notes = [
        f"paper: {paper.HOURS} h for {budget} on two H200 with "
        "DoGraph; the last column is training alone on this machine's device, at the speed seen",
        "times are what training took beside whatever else ran; for clean ones give --workers 1 on "
        "an idle machine",
    ]
    return Reproduction([sheet], rows, verdicts, notes)
