"""Artefacts made of validation losses: by method, by objective, by number of domains, by size."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch

from dograph.domains.objectives import build_objective
from dograph.domains.partition import partition
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Reproduction,
    Study,
    TextTable,
    Values,
    Verdict,
    Word,
    judge,
    judge_all,
    judge_less,
    less,
    level,
    losses,
    untested,
)
from dograph.rng import stream
from dograph.stats import Estimate, median_estimate, median_record
from dograph.train.distributed import pick_device
from dograph.types import Domains

SAMPLES, WIDTH, NUM_DOMAINS = 48, 5120, 11  # of a solve that is timed: the paper's size
UNTIMED, TIMED = 5, 60


def validation_loss(study: Study) -> Reproduction:
    """tab:pretrain_results, read as nats."""
    values, printed = losses(study.only), paper.VALIDATION_LOSS
    natural, uniform = losses(study.only, "natural"), printed[BASELINE]
    contrasts = {method.label: method.differences for method in study.only.methods}
    rows, data = [], {}
    for label in study.rows:
        theirs = None if label not in printed else printed[label] - uniform
        own = contrasts[label]
        text = None if own is None else own.mean.over_items
        rows.append(
            [
                label,
                *_loss_cells(values, label),
                "" if label == BASELINE else less(values, label, BASELINE).text("+.3f"),
                "" if label == BASELINE or text is None else text.text("+.3f"),
                number(printed.get(label), ".2f"),
                f"{math.exp(printed[label]):.1f}" if label in printed else "",
                "" if label == BASELINE else number(theirs, "+.2f"),
            ]
        )
        data[label] = _record(values, label, BASELINE) | {
            "natural": level(natural, label).record(),
            "over_text": text and asdict(text),
            "paper": printed.get(label),
            "paper_difference": theirs,
        }
    columns = ("method", "nats ± 95 %", "exp", "less uniform [95 %]", "text [95 %]")
    verdicts = []
    for label, name in paper.NAMES.items():
        if label not in (BASELINE, paper.OURS):
            side = "below" if printed[label] - uniform < 0 else "above"
            says = f"{name} {side} Uniform"
            verdicts.append(_judged(values, label, BASELINE, says, printed[label] - uniform))
    for label in SUBJECTS:
        for rival in (BASELINE, "dynamic-loss"):
            says, change = (
                f"DoGraph below {paper.NAMES[rival]}",
                printed[paper.OURS] - printed[rival],
            )
            verdicts.append(_judged(values, label, rival, says, change))
        says = "DoGraph lowest of the seven methods"
        if not values.get(label):
            verdicts.append(untested(says, f"no finished run of {label}", label))
            continue
        rivals = [name for name in paper.NAMES if name != paper.OURS and values.get(name)]
        figures = {name: less(values, label, name, len(rivals)) for name in rivals}
        verdicts.append(judge_all(says, figures, sign=-1, of=label))
    columns_of_paper = ('paper "PPL"', "exp", "less uniform")
    title = "validation loss, every source alike"
    sheet = TextTable(title, (*columns, *columns_of_paper), rows)
    return Reproduction([sheet], {"methods": data}, verdicts)


def objectives(study: Study) -> Reproduction:
    """tab:opt_objectives, read as nats, with solves timed on this machine."""
    values, best = losses(study.only), "uncertainty"
    device = study.only.config["train"]["device"]
    times = solve_times(device)
    about = {"device": str(pick_device(device)), "samples": SAMPLES, "num_domains": NUM_DOMAINS}
    rows, data = [], {}
    for label in study.rows:
        complexity, printed = paper.OBJECTIVES.get(label, ("", None))
        theirs = None if printed is None else printed - paper.OBJECTIVES[best][1]
        rows.append(
            [
                *_loss_row(values, label, best),
                number(printed, ".2f"),
                "" if label == best else number(theirs, "+.2f"),
            ]
        )
        data[label] = _record(values, label, best) | {
            "less_uniform": less(values, label, BASELINE).record(),
            "solve_ms": median_record(times[label]) | about if label in times else None,
            "paper": printed,
            "paper_difference": theirs,
            "paper_complexity": complexity or None,
        }
    columns = ("objective", "nats ± 95 %", "exp", f"less {best} [95 %]", "less uniform [95 %]")
    solved = [[name, ms.text(".3f"), paper.OBJECTIVES[name][0]] for name, ms in times.items()]
    sheets = [
        TextTable(
            "objectives of DoGraph: validation loss",
            (*columns, 'paper "PPL"', f"less {best}"),
            rows,
        ),
        TextTable(
            f"one solve at m = {NUM_DOMAINS}, milliseconds here and the paper's complexity",
            ("objective", "ms [95 %]", "complexity"),
            solved,
        ),
    ]
    verdicts = []
    for label, (_, printed) in paper.OBJECTIVES.items():
        if label != best:
            change = paper.OBJECTIVES[best][1] - printed
            verdicts.append(_judged(values, best, label, f"{best} below {label}", change))
    return Reproduction(sheets, {"methods": data}, [*verdicts, _cheapest(times)])


def solve_times(device: str) -> dict[str, Estimate]:
    """Median milliseconds of one solve of each of the paper's objectives, taking turns.

    A solve begins with what is known of the domains and ends when their weights are on the device.
    On a GPU it is waited for each time, so this is a latency, launches included.
    """
    place = pick_device(device)
    domains = example_domains().to(place)
    solvers = {name: build_objective(name) for name in paper.OBJECTIVES}
    spent: dict[str, list[float]] = {name: [] for name in solvers}
    for turn in range(UNTIMED + TIMED):
        for name, solve in solvers.items():
            start = time.perf_counter()
            solve(domains)
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            if turn >= UNTIMED:
                spent[name].append(1e3 * (time.perf_counter() - start))
    return {name: median_estimate(times) for name, times in spent.items()}


def example_domains() -> Domains:
    """48 sketches around a few directions of different length; every domain has samples."""
    draws = stream(0, "reproduce", "solving")
    label_B = torch.arange(SAMPLES) % NUM_DOMAINS
    centre_MK = torch.from_numpy(draws.standard_normal((NUM_DOMAINS, WIDTH)))
    noise_BK = torch.from_numpy(draws.standard_normal((SAMPLES, WIDTH)))
    length_B1 = 1 + label_B[:, None] / 4
    sketch_BK = (0.3 * centre_MK[label_B] + noise_BK) * length_B1
    return partition(sketch_BK.float(), label_B, NUM_DOMAINS)


def _cheapest(times: Mapping[str, Estimate]) -> Verdict:
    """Medians of solves: robust is the fastest where its interval lies below all others'."""
    says, robust = "robust softmax has the lowest computational cost", times["robust"]
    own, others = robust.interval, {n: t.interval for n, t in times.items() if n != "robust"}
    assert own is not None
    ends = {name: interval for name, interval in others.items() if interval is not None}
    faster = [name for name in ends if ends[name].high < own.low]
    rival = min(faster or ends, key=lambda name: ends[name].low)
    word: Word = "unclear"
    told = "not confirmed, the intervals overlap"
    if own.high < ends[rival].low:
        word, told = "confirmed", "confirmed"
    elif faster:
        word, told = "opposite", "not confirmed, it is the other way round"
    shown = f"{robust.text('.3f')} ms, {rival} {times[rival].text('.3f')} ms"
    return Verdict("robust", says, None, None, word, f"paper: {says}; here {shown}: {told}")


def num_domains(study: Study) -> Reproduction:
    """fig:cluster_granularity, a picture: a U with its lowest point at 11."""
    values, best = losses(study.only), f"m{paper.BEST_NUM_DOMAINS}"
    columns = ("domains", "nats ± 95 %", "exp", f"less {best} [95 %]", "less uniform [95 %]")
    verdicts = [
        _judged(values, best, f"m{m}", f"m = {paper.BEST_NUM_DOMAINS} below m = {m}")
        for m in paper.NUM_DOMAINS
        if f"m{m}" != best
    ]
    rows = [_loss_row(values, label, best) for label in study.rows]
    sheet = TextTable("validation loss by number of domains m", columns, rows)
    data = {label: _record(values, label, best) for label in study.rows}
    return Reproduction([sheet], {"methods": data}, verdicts)


def model_scale(study: Study) -> Reproduction:
    """fig:domain_bias, a picture: losses fall with size, and DoGraph's are the lowest."""
    values = {size: losses(findings) for size, findings in study.findings.items()}
    sizes, labels = list(values), study.rows
    levels = [
        [label, *(level(values[s], label).plus_minus(".4f") for s in sizes)] for label in labels
    ]
    changes = [
        [label, *(less(values[s], label, BASELINE).text("+.3f") for s in sizes)]
        for label in labels
        if label != BASELINE
    ]
    sheets = [
        TextTable("validation loss in nats ± 95 % by model size", ("method", *sizes), levels),
        TextTable("the same less uniform [95 %]", ("method", *sizes), changes),
    ]
    data = {
        label: {size: _record(values[size], label, BASELINE) for size in sizes} for label in labels
    }
    verdicts = []
    for label in SUBJECTS:
        for size in sizes:
            for rival in (BASELINE, "regmix"):
                says = f"DoGraph below {paper.NAMES[rival]} at {size}"
                verdicts.append(_judged(values[size], label, rival, says))
    for small, large in pairwise(sizes):
        for label in labels:
            # Seed by seed: models of both sizes see the same text in one order.
            both = {size: values[size].get(label, {}) for size in (large, small)}
            says = f"the loss of {label} falls from {small} to {large}"
            verdicts.append(judge(says, less(both, large, small), sign=-1, of=label))
    return Reproduction(sheets, {"methods": data}, verdicts)


def _judged(
    values: Values, label: str, rival: str, says: str, change: float | None = None
) -> Verdict:
    """A loss below another's, or above where the paper's own change is."""
    sign = 1 if change is not None and change > 0 else -1
    return judge_less(values, label, rival, says, sign=sign, paper=change)


def _loss_cells(values: Values, label: str) -> list[str]:
    ours = level(values, label)
    return [ours.plus_minus(".4f"), f"{math.exp(ours.value):.1f}" if ours.num else ""]


def _loss_row(values: Values, label: str, best: str) -> list[str]:
    """The loss, and how far above the best one and above uniform it is."""
    others = ["" if label == o else less(values, label, o).text("+.3f") for o in (best, BASELINE)]
    return [label, *_loss_cells(values, label), *others]


def _record(values: Values, label: str, other: str) -> dict[str, Any]:
    ours = level(values, label)
    return {
        "loss_nats": ours.record(),
        "ppl": math.exp(ours.value) if ours.num else None,
        f"less_{other}": None if label == other else less(values, label, other).record(),
        "by_seed": {str(seed): value for seed, value in values.get(label, {}).items()},
    }


def number(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)
