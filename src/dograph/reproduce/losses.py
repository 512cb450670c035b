"""Artefacts made of validation losses: by method, objective, number of domains, size, balance."""

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter

import torch

from dograph.domains.objectives import build_objective
from dograph.domains.partition import partition
from dograph.eval.recorded import balance as balance_of
from dograph.reproduce import paper
from dograph.reproduce.artefacts import BASELINE
from dograph.reproduce.verdicts import (
    SUBJECTS,
    Claim,
    Figure,
    FigureColumn,
    Reproduction,
    Rows,
    Study,
    TextTable,
    Word,
    losses,
    table_of,
)
from dograph.rng import stream
from dograph.stats import Estimate, median_estimate, median_record
from dograph.train.distributed import pick_device
from dograph.types import Domains

SAMPLES, WIDTH, NUM_DOMAINS = 48, 5120, 11  # of a solve that is timed: the paper's size
UNTIMED, TIMED = 5, 60


LOSS_COLUMNS = (FigureColumn("nats ± 95 %", "loss_nats", "±.4f"), FigureColumn("exp", "ppl", ".1f"))


def validation_loss(study: Study) -> Reproduction:
    """tab:pretrain_results, read as nats."""
    loss, natural = losses(study.only), losses(study.only, "natural")
    printed, uniform = paper.VALIDATION_LOSS, paper.VALIDATION_LOSS[BASELINE]
    theirs = {label: value - uniform for label, value in printed.items()}
    rows = _loss_rows(study, loss, BASELINE)
    for method in study.only.methods:
        label, own = method.label, method.differences
        rows[label] |= {
            "natural": natural.level(label),
            "over_text": None if own is None else own.mean.over_items,
            "paper": printed.get(label),
            "paper_difference": theirs.get(label),
        }
    columns = [
        *LOSS_COLUMNS,
        FigureColumn("less uniform [95 %]", "less_uniform", "[+.3f]"),
        FigureColumn("text [95 %]", "over_text", "[+.3f]", BASELINE),
        FigureColumn('paper "PPL"', "paper", ".2f"),
        FigureColumn("exp", "paper", ".1f", of=math.exp),
        FigureColumn("less uniform", "paper_difference", "+.2f", BASELINE),
    ]
    sheet = table_of("validation loss, every source alike", "method", rows, columns)
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
    return Reproduction([sheet], rows, verdicts)


def objectives(study: Study) -> Reproduction:
    """tab:opt_objectives, read as nats, with solves timed on this machine."""
    loss, best = losses(study.only), "uncertainty"
    device = study.only.config["train"]["device"]
    times = solve_times(device)
    about = {"device": str(pick_device(device)), "samples": SAMPLES, "num_domains": NUM_DOMAINS}
    rows = _loss_rows(study, loss, best)
    for label, row in rows.items():
        complexity, printed = paper.OBJECTIVES.get(label, (None, None))
        row |= {
            "less_uniform": loss.less(label, BASELINE),
            "solve_ms": median_record(times[label]) | about if label in times else None,
            "paper": printed,
            "paper_difference": None if printed is None else printed - paper.OBJECTIVES[best][1],
            "paper_complexity": complexity,
        }
    columns = [
        *LOSS_COLUMNS,
        FigureColumn(f"less {best} [95 %]", f"less_{best}", "[+.3f]"),
        FigureColumn("less uniform [95 %]", "less_uniform", "[+.3f]", BASELINE),
        FigureColumn('paper "PPL"', "paper", ".2f"),
        FigureColumn(f"less {best}", "paper_difference", "+.2f", best),
    ]
    sheets = [
        table_of("objectives of DoGraph: validation loss", "objective", rows, columns),
        TextTable(
            f"one solve at m = {NUM_DOMAINS}, milliseconds here and the paper's complexity",
            ("objective", "ms [95 %]", "complexity"),
            [[name, ms.text(".3f"), paper.OBJECTIVES[name][0]] for name, ms in times.items()],
        ),
    ]
    verdicts = [
        _judged(loss, best, label, f"{best} below {label}", paper.OBJECTIVES[best][1] - printed)
        for label, (_, printed) in paper.OBJECTIVES.items()
        if label != best
    ]
    return Reproduction(sheets, rows, [*verdicts, _cheapest(times)])


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
    rows = _loss_rows(study, loss, best)
    shown = {label: row | {"uniform": loss.less(label, BASELINE)} for label, row in rows.items()}
    columns = [
        *LOSS_COLUMNS,
        FigureColumn(f"less {best} [95 %]", f"less_{best}", "[+.3f]"),
        FigureColumn("less uniform [95 %]", "uniform", "[+.3f]", BASELINE),
    ]
    sheet = table_of("validation loss by number of domains m", "domains", shown, columns)
    verdicts = [
        _judged(loss, best, f"m{m}", f"m = {paper.BEST_NUM_DOMAINS} below m = {m}")
        for m in paper.NUM_DOMAINS
        if m != paper.BEST_NUM_DOMAINS
    ]
    return Reproduction([sheet], rows, verdicts)


def model_scale(study: Study) -> Reproduction:
    """fig:domain_bias, a picture: losses fall with size, and DoGraph's are the lowest."""
    by_size = {size: losses(findings) for size, findings in study.findings.items()}
    rows: Rows = {label: {} for label in study.rows}
    levels, changes, verdicts = [], [], []
    for size, loss in by_size.items():
        for label, figures in _loss_rows(study, loss, BASELINE).items():
            rows[label][size] = figures
        levels.append(FigureColumn(size, size, "±.4f", of=itemgetter("loss_nats")))
        changes.append(FigureColumn(size, size, "[+.3f]", of=itemgetter("less_uniform")))
    others = {label: row for label, row in rows.items() if label != BASELINE}
    sheets = [
        table_of("validation loss in nats ± 95 % by model size", "method", rows, levels),
        table_of("the same less uniform [95 %]", "method", others, changes),
    ]
    for label in SUBJECTS:
        for size, loss in by_size.items():
            for rival in (BASELINE, "regmix"):
                says = f"DoGraph below {paper.NAMES[rival]} at {size}"
                verdicts.append(_judged(loss, label, rival, says))
    for small, large in pairwise(by_size):
        for label in rows:
            # Seed by seed: models of both sizes see the same text in one order.
            both = Figure({size: by_size[size].of(label) for size in (large, small)})
            claim = Claim(f"the loss of {label} falls from {small} to {large}", -1, label)
            verdicts.append(claim.judge(both.less(large, small)))
    return Reproduction(sheets, rows, verdicts)


def balance(study: Study) -> Reproduction:
    """How far apart the sources' losses are, the balance that the paper speaks of in words."""
    figures = {
        "spread": Figure.read(study.only, lambda cell: balance_of(cell.losses).spread),
        "gap": Figure.read(study.only, lambda cell: balance_of(cell.losses).gap),
        "worst": losses(study.only, "worst"),
    }
    rows: Rows = {}
    for label in study.rows:
        rows[label] = {name: figure.level(label) for name, figure in figures.items()}
        for name, figure in figures.items():
            rows[label][f"{name}_less_uniform"] = figure.less(label, BASELINE)
    columns = []
    for name in figures:
        columns.append(FigureColumn(f"{name} ± 95 %", name, "±.3f"))
        columns.append(
            FigureColumn("less uniform [95 %]", f"{name}_less_uniform", "[+.3f]", BASELINE)
        )
    title = "losses over sources in nats: deviation, worst less best, worst"
    sheet = table_of(title, "method", rows, columns[:-1])
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
    return Reproduction([sheet], rows, verdicts, notes)


def _judged(loss: Figure, label: str, rival: str, says: str, change: float | None = None) -> Claim:
    """A loss below another's, or above where the paper's own change is."""
    above = change is not None and change > 0
    return Claim(says, 1 if above else -1, label, change).judge_less(loss, rival)


def _loss_rows(study: Study, loss: Figure, other: str) -> Rows:
    rows: Rows = {}
    for label in study.rows:
        ours = loss.level(label)
        rows[label] = {
            "loss_nats": ours,
            "ppl": math.exp(ours.value) if ours.num else None,
            f"less_{other}": None if label == other else loss.less(label, other),
            "by_seed": {str(seed): value for seed, value in loss.of(label).items()},
        }
    return rows
