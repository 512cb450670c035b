"""Artefacts made of validation losses: by method, objective, number of domains, size, balance."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch

from dograph.domains.objectives import build_objective
from dograph.domains.partition import partition
from dograph.eval.balance import balance as balance_of
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Claim,
    Column,
    Figure,
    Reproduction,
    Study,
    TextTable,
    Word,
    changes,
    levels,
    losses,
    numbers,
    table_of,
)
from dograph.rng import stream
from dograph.stats import Estimate, median_estimate, median_record
from dograph.train.distributed import pick_device
from dograph.types import Domains

SAMPLES, WIDTH, NUM_DOMAINS = 48, 5120, 11  # of a solve that is timed: the paper's size
UNTIMED, TIMED = 5, 60


def validation_loss(study: Study) -> Reproduction:
    """tab:pretrain_results, read as nats."""
    loss, natural = losses(study.only), losses(study.only, "natural")
    printed, uniform = paper.VALIDATION_LOSS, paper.VALIDATION_LOSS[BASELINE]
    theirs = {label: value - uniform for label, value in printed.items()}
    text = {
        method.label: None if method.differences is None else method.differences.mean.over_items
        for method in study.only.methods
    }

    def over_text(label: str) -> str:
        own = None if label == BASELINE else text[label]
        return "" if own is None else own.text("+.3f")

    columns = [
        *_loss_columns(loss, BASELINE),
        ("text [95 %]", over_text),
        numbers('paper "PPL"', printed, ".2f"),
        numbers("exp", {label: math.exp(value) for label, value in printed.items()}, ".1f"),
        numbers("less uniform", theirs, "+.2f", but=BASELINE),
    ]
    sheet = table_of("validation loss, every source alike", "method", study.rows, columns)
    data = {
        label: _record(loss, label, BASELINE)
        | {
            "natural": natural.level(label).record(),
            "over_text": (own := text[label]) and asdict(own),
            "paper": printed.get(label),
            "paper_difference": theirs.get(label),
        }
        for label in study.rows
    }
    verdicts = []
    for label, name in paper.NAMES.items():
        if label not in (BASELINE, paper.OURS):
            side = "below" if theirs[label] < 0 else "above"
            verdicts.append(_judged(loss, label, BASELINE, f"{name} {side} Uniform", theirs[label]))
    for label in SUBJECTS:
        for rival in (BASELINE, "dynamic-loss"):
            change = printed[paper.OURS] - printed[rival]
            says = f"DoGraph below {paper.NAMES[rival]}"
            verdicts.append(_judged(loss, label, rival, says, change))
        verdicts.append(Claim("DoGraph lowest of the seven methods", -1, label).judge_best(loss))
    return Reproduction([sheet], {"methods": data}, verdicts)


def objectives(study: Study) -> Reproduction:
    """tab:opt_objectives, read as nats, with solves timed on this machine."""
    loss, best = losses(study.only), "uncertainty"
    device = study.only.config["train"]["device"]
    times = solve_times(device)
    about = {"device": str(pick_device(device)), "samples": SAMPLES, "num_domains": NUM_DOMAINS}
    complexity = {name: order for name, (order, _) in paper.OBJECTIVES.items()}
    printed = {name: value for name, (_, value) in paper.OBJECTIVES.items()}
    theirs = {name: value - printed[best] for name, value in printed.items()}
    columns = [
        *_loss_columns(loss, best, BASELINE),
        numbers('paper "PPL"', printed, ".2f"),
        numbers(f"less {best}", theirs, "+.2f", but=best),
    ]
    sheets = [
        table_of("objectives of DoGraph: validation loss", "objective", study.rows, columns),
        TextTable(
            f"one solve at m = {NUM_DOMAINS}, milliseconds here and the paper's complexity",
            ("objective", "ms [95 %]", "complexity"),
            [[name, ms.text(".3f"), complexity[name]] for name, ms in times.items()],
        ),
    ]
    data = {
        label: _record(loss, label, best)
        | {
            "less_uniform": loss.less(label, BASELINE).record(),
            "solve_ms": median_record(times[label]) | about if label in times else None,
            "paper": printed.get(label),
            "paper_difference": theirs.get(label),
            "paper_complexity": complexity.get(label),
        }
        for label in study.rows
    }
    verdicts = [
        _judged(loss, best, label, f"{best} below {label}", -theirs[label])
        for label in printed
        if label != best
    ]
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


def _cheapest(times: Mapping[str, Estimate]) -> Claim:
    """Medians of solves: robust is the fastest where its interval lies below all others'."""
    says = "robust softmax has the lowest computational cost"
    ends = {name: solve.interval for name, solve in times.items() if solve.interval is not None}
    own = ends.pop("robust")
    faster = [name for name in ends if ends[name].high < own.low]
    rival = min(faster or ends, key=lambda name: ends[name].low)
    word: Word = "unclear"
    told = "not confirmed, the intervals overlap"
    if own.high < ends[rival].low:
        word, told = "confirmed", "confirmed"
    elif faster:
        word, told = "opposite", "not confirmed, it is the other way round"
    shown = f"{times['robust'].text('.3f')} ms, {rival} {times[rival].text('.3f')} ms"
    return Claim(says, -1, "robust", word=word, line=f"paper: {says}; here {shown}: {told}")


def num_domains(study: Study) -> Reproduction:
    """fig:cluster_granularity, a picture: a U with its lowest point at 11."""
    loss, best = losses(study.only), f"m{paper.BEST_NUM_DOMAINS}"
    columns = _loss_columns(loss, best, BASELINE)
    sheet = table_of("validation loss by number of domains m", "domains", study.rows, columns)
    data = {label: _record(loss, label, best) for label in study.rows}
    verdicts = [
        _judged(loss, best, f"m{m}", f"m = {paper.BEST_NUM_DOMAINS} below m = {m}")
        for m in paper.NUM_DOMAINS
        if m != paper.BEST_NUM_DOMAINS
    ]
    return Reproduction([sheet], {"methods": data}, verdicts)


def model_scale(study: Study) -> Reproduction:
    """fig:domain_bias, a picture: losses fall with size, and DoGraph's are the lowest."""
    by_size, labels = {size: losses(f) for size, f in study.findings.items()}, study.rows
    others = [label for label in labels if label != BASELINE]
    own = [levels(size, loss, ".4f") for size, loss in by_size.items()]
    less = [changes(size, loss, BASELINE) for size, loss in by_size.items()]
    sheets = [
        table_of("validation loss in nats ± 95 % by model size", "method", labels, own),
        table_of("the same less uniform [95 %]", "method", others, less),
    ]
    data = {
        label: {size: _record(loss, label, BASELINE) for size, loss in by_size.items()}
        for label in labels
    }
    verdicts = [
        _judged(loss, label, rival, f"DoGraph below {paper.NAMES[rival]} at {size}")
        for label in SUBJECTS
        for size, loss in by_size.items()
        for rival in (BASELINE, "regmix")
    ]
    for small, large in pairwise(by_size):
        for label in labels:
            # Seed by seed: models of both sizes see the same text in one order.
            both = Figure({size: by_size[size].of(label) for size in (large, small)})
            claim = Claim(f"the loss of {label} falls from {small} to {large}", -1, label)
            verdicts.append(claim.judge(both.less(large, small)))
    return Reproduction(sheets, {"methods": data}, verdicts)


def balance(study: Study) -> Reproduction:
    """How far apart the sources' losses are, the balance that the paper speaks of in words."""
    figures = {
        "spread": Figure.read(study.only, lambda cell: balance_of(cell.losses).spread),
        "gap": Figure.read(study.only, lambda cell: balance_of(cell.losses).gap),
        "worst": losses(study.only, "worst"),
    }
    columns = []
    for name, figure in figures.items():
        columns.append(levels(f"{name} ± 95 %", figure, ".3f"))
        columns.append(changes("less uniform [95 %]", figure, BASELINE))
    title = "losses over sources in nats: deviation, worst less best, worst"
    sheet = table_of(title, "method", study.rows, columns[:-1])
    data = {}
    for label in study.rows:
        own = {name: figure.level(label) for name, figure in figures.items()}
        own |= {f"{name}_less_uniform": f.less(label, BASELINE) for name, f in figures.items()}
        data[label] = {name: estimate.record() for name, estimate in own.items()}
    says = "DoGraph more balanced over sources than Uniform"
    verdicts = [
        _judged(figures[name], label, BASELINE, f"{says} ({name})")
        for label in SUBJECTS
        for name in ("spread", "gap")
    ]
    notes = [
        "sources differ in how well any model can predict them: what counts is the difference "
        "to uniform",
        "the paper speaks of balance and prints no figure of it",
    ]
    return Reproduction([sheet], {"methods": data}, verdicts, notes)


def _judged(loss: Figure, label: str, rival: str, says: str, change: float | None = None) -> Claim:
    """A loss below another's, or above where the paper's own change is."""
    above = change is not None and change > 0
    return Claim(says, 1 if above else -1, label, change).judge_less(loss, rival)


def _loss_columns(loss: Figure, *others: str) -> list[Column]:
    """The loss, its perplexity, and how far above others it is."""

    def perplexity(label: str) -> str:
        return f"{math.exp(loss.level(label).value):.1f}" if label in loss else ""

    less = [changes(f"less {other} [95 %]", loss, other) for other in others]
    return [levels("nats ± 95 %", loss, ".4f"), ("exp", perplexity), *less]


def _record(loss: Figure, label: str, other: str) -> dict[str, Any]:
    ours = loss.level(label)
    return {
        "loss_nats": ours.record(),
        "ppl": math.exp(ours.value) if ours.num else None,
        f"less_{other}": None if label == other else loss.less(label, other).record(),
        "by_seed": {str(seed): value for seed, value in loss.of(label).items()},
    }
