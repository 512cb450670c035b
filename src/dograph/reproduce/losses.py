"""Artefacts made of validation losses: by method, by objective, by number of domains, by size."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from dograph.compare.findings import Findings
from dograph.domains.objectives import build_objective
from dograph.domains.partition import partition
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE, displayed
from dograph.reproduce.paper import OBJECTIVES
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Outcome,
    Sheet,
    Sign,
    Study,
    Values,
    Verdict,
    Word,
    judge,
    judge_all,
    less,
    level,
    losses,
    present,
    untested,
)
from dograph.rng import stream
from dograph.stats import Estimate, median_record
from dograph.train.distributed import pick_device
from dograph.types import Domains

# Milliseconds of one solve of each objective, at the size that the paper uses.
#
# 48 samples in 11 domains; sketches around a few directions of different length. A solve begins
# with what is known of the domains and ends when their weights are on the device. On a GPU it is
# waited for each time, so this is a latency, launches included.


SAMPLES, WIDTH, NUM_DOMAINS = 48, 5120, 11
UNTIMED, TIMED = 5, 60


@dataclass(frozen=True, slots=True)
class Solve:
    """The median and its 95 % interval, from order statistics."""

    median: float
    low: float
    high: float
    record: dict[str, Any]

    @property
    def text(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f},{self.high:.3f}]"


def solve_times(device: str) -> dict[str, Solve]:
    """Of the paper's four objectives, taking turns."""
    place = pick_device(device)
    domains = example_domains().to(place)
    solvers = {name: build_objective(name) for name in OBJECTIVES}
    spent: dict[str, list[float]] = {name: [] for name in solvers}
    for turn in range(UNTIMED + TIMED):
        for name, solve in solvers.items():
            start = time.perf_counter()
            solve(domains)
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            if turn >= UNTIMED:
                spent[name].append(1e3 * (time.perf_counter() - start))
    found = {}
    for name, times in spent.items():
        median = median_record(times)
        about = {"device": str(place), "samples": SAMPLES, "num_domains": NUM_DOMAINS}
        found[name] = Solve(median["median"], median["low"], median["high"], median | about)
    return found


def example_domains() -> Domains:
    """A batch in which every domain has samples."""
    draws = stream(0, "reproduce", "solving")
    label_B = torch.arange(SAMPLES) % NUM_DOMAINS
    centre_MK = torch.from_numpy(draws.standard_normal((NUM_DOMAINS, WIDTH)))
    noise_BK = torch.from_numpy(draws.standard_normal((SAMPLES, WIDTH)))
    length_B1 = 1 + label_B[:, None] / 4
    sketch_BK = (0.3 * centre_MK[label_B] + noise_BK) * length_B1
    return partition(sketch_BK.float(), label_B, NUM_DOMAINS)


def validation_loss(study: Study) -> Outcome:
    """tab:pretrain_results, read as nats."""
    findings = study.only
    values, uniform = losses(findings), paper.VALIDATION_LOSS[BASELINE]
    rows, data = [], {}
    for label in displayed([m["label"] for m in findings["methods"]]):
        ours, difference = level(values, label), less(values, label, BASELINE)
        printed = paper.VALIDATION_LOSS.get(label)
        theirs = None if printed is None else printed - uniform
        rows.append(
            [
                label,
                *_loss_cells(ours),
                *_difference_cells(findings, label, difference),
                _number(printed, ".2f"),
                "" if printed is None else f"{math.exp(printed):.1f}",
                "" if label == BASELINE else _number(theirs, "+.2f"),
            ]
        )
        data[label] = _record(values, label, BASELINE) | {
            "natural": level(losses(findings, "natural"), label).record(),
            "over_text": _over_text(findings, label),
            "paper": printed,
            "paper_difference": theirs,
        }
    columns = ("method", "nats ± 95 %", "exp", "less uniform [95 %]", "text [95 %]")
    sheet = Sheet(
        "validation loss, every source alike",
        (*columns, 'paper "PPL"', "exp", "less uniform"),
        rows,
    )
    return Outcome([sheet], {"methods": data}, _loss_verdicts(findings, values))


def _loss_verdicts(findings: Findings, values: Values) -> list[Verdict]:
    printed = paper.VALIDATION_LOSS
    found = []
    for label, name in paper.NAMES.items():
        if label in (BASELINE, paper.OURS):
            continue
        change = printed[label] - printed[BASELINE]
        side = "below" if change < 0 else "above"
        found.append(
            _judged(findings, values, label, BASELINE, f"{name} {side} Uniform", paper_value=change)
        )
    for label in SUBJECTS:
        for rival in (BASELINE, "dynamic-loss"):
            says = f"DoGraph below {paper.NAMES[rival]}"
            change = printed[paper.OURS] - printed[rival]
            found.append(_judged(findings, values, label, rival, says, paper_value=change))
        found.append(_lowest(findings, values, label))
    return found


def _lowest(findings: Findings, values: Values, label: str) -> Verdict:
    says = "DoGraph lowest of the seven methods"
    if not present(findings, [label]):
        return untested(says, f"no finished run of {label}", label)
    rivals = present(findings, [name for name in paper.NAMES if name != paper.OURS])
    figures = {name: less(values, label, name, len(rivals)) for name in rivals}
    return judge_all(says, figures, sign=-1, of=label)


def objectives(study: Study) -> Outcome:
    """tab:opt_objectives, read as nats, with solves timed on this machine."""
    findings = study.only
    values, best = losses(findings), "uncertainty"
    times = solve_times(findings["config"]["train"]["device"])
    rows, data = [], {}
    for label in displayed([m["label"] for m in findings["methods"]]):
        complexity, printed = paper.OBJECTIVES.get(label, ("", None))
        theirs = None if printed is None else printed - paper.OBJECTIVES[best][1]
        solve = times.get(label)
        rows.append(
            [
                label,
                *_loss_cells(level(values, label)),
                "" if label == best else less(values, label, best).text("+.3f"),
                "" if label == BASELINE else less(values, label, BASELINE).text("+.3f"),
                _number(printed, ".2f"),
                "" if label == best else _number(theirs, "+.2f"),
            ]
        )
        data[label] = _record(values, label, best) | {
            "less_uniform": less(values, label, BASELINE).record(),
            "solve_ms": None if solve is None else solve.record,
            "paper": printed,
            "paper_difference": theirs,
            "paper_complexity": complexity or None,
        }
    columns = ("objective", "nats ± 95 %", "exp", f"less {best} [95 %]", "less uniform [95 %]")
    sheets = [
        Sheet(
            "objectives of DoGraph: validation loss",
            (*columns, 'paper "PPL"', f"less {best}"),
            rows,
        ),
        Sheet(
            f"one solve at m = {NUM_DOMAINS}, milliseconds here and the paper's complexity",
            ("objective", "ms [95 %]", "complexity"),
            [[name, solve.text, paper.OBJECTIVES[name][0]] for name, solve in times.items()],
        ),
    ]
    verdicts = [
        _judged(
            findings,
            values,
            best,
            label,
            f"{best} below {label}",
            paper_value=paper.OBJECTIVES[best][1] - printed,
        )
        for label, (_, printed) in paper.OBJECTIVES.items()
        if label != best
    ]
    return Outcome(sheets, {"methods": data}, [*verdicts, _cheapest(times)])


def _cheapest(times: Mapping[str, Solve]) -> Verdict:
    """Medians of solves: robust is the fastest where its interval lies below all others'."""
    says, robust = "robust softmax has the lowest computational cost", times["robust"]
    rivals = [name for name in times if name != "robust"]
    faster = [name for name in rivals if times[name].high < robust.low]
    rival = min(faster or rivals, key=lambda name: times[name].low)
    other = times[rival]
    word: Word = "unclear"
    told = "not confirmed, the intervals overlap"
    if robust.high < other.low:
        word, told = "confirmed", "confirmed"
    elif faster:
        word, told = "opposite", "not confirmed, it is the other way round"
    line = f"paper: {says}; here {robust.text} ms, {rival} {other.text} ms: {told}"
    return Verdict("robust", says, None, None, word, line)


def num_domains(study: Study) -> Outcome:
    """fig:cluster_granularity, a picture: a U with its lowest point at 11."""
    findings = study.only
    values, best = losses(findings), f"m{paper.BEST_NUM_DOMAINS}"
    labels = displayed([m["label"] for m in findings["methods"]])
    rows = [
        [
            label,
            *_loss_cells(level(values, label)),
            "" if label == best else less(values, label, best).text("+.3f"),
            "" if label == BASELINE else less(values, label, BASELINE).text("+.3f"),
        ]
        for label in labels
    ]
    columns = ("domains", "nats ± 95 %", "exp", f"less {best} [95 %]", "less uniform [95 %]")
    verdicts = [
        _judged(findings, values, best, f"m{m}", f"m = {paper.BEST_NUM_DOMAINS} below m = {m}")
        for m in paper.NUM_DOMAINS
        if f"m{m}" != best
    ]
    data = {label: _record(values, label, best) for label in labels}
    sheet = Sheet("validation loss by number of domains m", columns, rows)
    return Outcome([sheet], {"methods": data}, verdicts)


def model_scale(study: Study) -> Outcome:
    """fig:domain_bias, a picture: losses fall with size, and DoGraph's are the lowest."""
    sizes = list(study.findings)
    values = {size: losses(findings) for size, findings in study.findings.items()}
    first = study.findings[sizes[0]]
    labels = displayed([m["label"] for m in first["methods"]])
    rows = [
        [label, *(level(values[s], label).plus_minus(".4f") for s in sizes)] for label in labels
    ]
    others = [label for label in labels if label != BASELINE]
    changes = [
        [label, *(less(values[s], label, BASELINE).text("+.3f") for s in sizes)] for label in others
    ]
    sheets = [
        Sheet("validation loss in nats ± 95 % by model size", ("method", *sizes), rows),
        Sheet("the same less uniform [95 %]", ("method", *sizes), changes),
    ]
    data = {
        label: {size: _record(values[size], label, BASELINE) for size in sizes} for label in labels
    }
    verdicts = [
        _judged(
            study.findings[size],
            values[size],
            label,
            rival,
            f"DoGraph below {paper.NAMES[rival]} at {size}",
        )
        for label in SUBJECTS
        for size in sizes
        for rival in (BASELINE, "regmix")
    ]
    verdicts += _falls(values, sizes, labels)
    return Outcome(sheets, {"methods": data}, verdicts)


def _falls(
    values: Mapping[str, Values], sizes: Sequence[str], labels: Sequence[str]
) -> list[Verdict]:
    """A larger model less the next smaller, seed by seed: they see the same text in one order."""
    found = []
    for small, large in pairwise(sizes):
        for label in labels:
            both = {
                large: values[large].get(label, {}),
                small: values[small].get(label, {}),
            }
            says = f"the loss of {label} falls from {small} to {large}"
            found.append(judge(says, less(both, large, small), sign=-1, of=label))
    return found


def _judged(
    findings: Findings,
    values: Values,
    label: str,
    rival: str,
    says: str,
    *,
    paper_value: float | None = None,
) -> Verdict:
    missing = [name for name in (label, rival) if not present(findings, [name])]
    if missing:
        return untested(says, f"no finished run of {' and of '.join(missing)}", label)
    sign: Sign = 1 if paper_value is not None and paper_value > 0 else -1
    return judge(says, less(values, label, rival), sign=sign, paper=paper_value, of=label)


def _loss_cells(ours: Estimate) -> list[str]:
    return [ours.plus_minus(".4f"), f"{math.exp(ours.value):.1f}" if ours.num else ""]


def _difference_cells(findings: Findings, label: str, difference: Estimate) -> list[str]:
    if label == BASELINE:
        return ["", ""]
    told = _over_text(findings, label)
    text = "" if told is None else f"[{told['low']:+.3f},{told['high']:+.3f}]"
    return [difference.text("+.3f"), text]


def _over_text(findings: Findings, label: str) -> Mapping[str, float] | None:
    """The interval over validation blocks that the comparison has found."""
    method = next(m for m in findings["methods"] if m["label"] == label)
    told = method.get("differences", {}).get("mean")
    over: Mapping[str, float] | None = None if told is None else told["over_items"]
    return over


def _record(values: Values, label: str, other: str) -> dict[str, Any]:
    ours = level(values, label)
    return {
        "loss_nats": ours.record(),
        "ppl": math.exp(ours.value) if ours.num else None,
        f"less_{other}": None if label == other else less(values, label, other).record(),
        "by_seed": {str(seed): value for seed, value in values.get(label, {}).items()},
    }


def _number(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)
