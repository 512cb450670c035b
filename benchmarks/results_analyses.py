"""The explaining parts of docs/results.md: diagnostics, the paper's analyses, its Figure 1."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.evidence_arms import CANDIDATES, REPORTED_STEPS, TUNING_STEPS
from benchmarks.measure import RESULTS
from benchmarks.results_pictures import ByArm
from benchmarks.results_tables import Cells, average, markdown, select, tuning_table, verdicts
from dograph.stats import mean_estimate, paired_difference

OBJECTIVES = ("paper", "variance", "robust", "alignment", "precision")
NUM_DOMAINS = ("m=7", "m=9", "paper", "m=13", "m=15")
SCOPES = ("paper", "batch, spherical", "epoch", "epoch, spherical", "stream, spherical")
TRIED = ("plain", "inverse-norm", "precision", *CANDIDATES)
PRICES = "weights-mini-h200.json"  # modes full and head beside plain training, in a run
FIGURES = {
    "separation": "separation [95 %]",
    "separation_directions": "of directions [95 %]",
    "nmi": "NMI [95 %]",
    "purity": "purity [95 %]",
}


def reasons(main: ByArm, second: ByArm) -> list[str]:
    """Where the recommended recipe and inverse-norm differ, and how many samples each uses."""
    return [
        "## Recommended vs. every other row, and why inverse-norm is close",
        "",
        "The goal was a variant that is lower than every other row, inverse-norm included, in",
        "both tables, with intervals that exclude zero (Holm over the table's rows).",
        "Recommended minus each row:",
        "",
        *_rows(main, second),
        "",
        *_pooled(main, second),
        "By source (main table), recommended vs. inverse-norm:",
        "",
        *_by_source(main),
        "",
        "- The two gain on different sources. *inverse-norm* loses on code and papers and gains on",
        "  prose. *recommended* takes weight from a few samples with large gradients, which form",
        "  domains of their own; it keeps more effective samples (*effective* above) and loses on",
        "  no source.",
        "- The gain does not come from shifting weight between sources. *recommended, kept* keeps",
        "  the total weight of every source as sampled (`mixer.keep_source_shares`): it gains",
        "  as much on the mean, and every source gains.",
        "- Methods with few effective samples lose: `paper` goes down to 16 of 48, robust and",
        "  alignment (below) to 2. Many effective samples alone are no gain: see `safe`.",
        "- Changing the sampling does not add to it. The planned mixtures are no better than equal",
        "  sampling, and a transfer law fitted to their 32 proxies puts the best mixture close to",
        "  it. Sampling by that law, or by strata, gained nothing more on tuning seeds (below).",
        "- With natural sampling, *inverse-norm, all* (norms of all layers, not only the blocks)",
        "  is the lowest row, on three seeds; with equal sampling it was not, on one tuning seed.",
        "- No other variant is better: stronger exponents, more domains, both rules together and",
        "  sketches in Adam's geometry ([log](log.md)) are equal or worse (below).",
        "",
    ]


def _rows(main: ByArm, second: ByArm) -> list[str]:
    """recommended minus each other row of both tables, with the claim."""
    rows = []
    for table, by_arm, metric in (("main", main, "mean"), ("second", second, "natural")):
        own = by_arm.get("recommended", {})
        pairs_of = {
            arm: [
                own[s]["summaries"][metric] - base[s]["summaries"][metric] for s in own if s in base
            ]
            for arm, base in by_arm.items()
            if arm != "recommended" and set(own) & set(base)
        }
        told = verdicts(list(pairs_of.values()))
        found = zip(pairs_of.items(), told, strict=True)
        rows += [
            [arm, table, str(len(pairs)), shown, word] for (arm, pairs), (shown, word) in found
        ]
    return markdown(["row", "table", "seeds", "difference [95 %]", "claim"], rows)


def _pooled(main: ByArm, second: ByArm) -> list[str]:
    """Both tables together: more seeds, but the analysis was not planned."""
    pairs = [
        by_arm["recommended"][seed]["summaries"][metric] - own["summaries"][metric]
        for by_arm, metric in ((main, "mean"), (second, "natural"))
        for seed, own in by_arm.get("inverse-norm", {}).items()
        if seed in by_arm.get("recommended", {})
    ]
    told = mean_estimate(pairs)
    if told.interval is None:
        return []
    return [
        f"Over all {len(pairs)} pairs of both tables, recommended vs. inverse-norm is",
        f"{told.text('+.4f', ' ')}. This analysis was not planned, so it is a hint, not a claim.",
        "",
    ]


def _by_source(main: ByArm) -> list[str]:
    own, base = main.get("recommended", {}), main.get("inverse-norm", {})
    seeds = sorted(set(own) & set(base))
    if not seeds:
        return []
    names = list(own[seeds[0]]["losses"])
    row = []
    for source in names:
        ours, theirs = ({s: run[s]["losses"][source] for s in seeds} for run in (own, base))
        row.append(paired_difference(ours, theirs).text("+.3f", " "))
    return markdown([name.removeprefix("RedPajama") for name in names], [row])


def worth(cells: Cells) -> list[str]:
    """Gains at equal steps as factors of plain training's steps, beside the prices of a step."""
    rows, slopes = [], []
    for table, metric in (("uniform", "mean"), ("natural", "natural")):
        if "plain" not in select(cells, table, TUNING_STEPS):
            return []
        by_arm, slope = select(cells, table, REPORTED_STEPS), nats_per_e_fold(cells, table, metric)
        slopes.append(f"{slope:.2f} ({table} sampling)")
        for arm in ("inverse-norm", "recommended"):
            own, base = by_arm[arm], by_arm["plain"]
            pairs = [own[s]["summaries"][metric] - base[s]["summaries"][metric] for s in own]
            told = mean_estimate(pairs)
            assert told.interval is not None
            most, mean, least = (
                math.exp(-nats / slope)
                for nats in (told.interval.low, told.value, told.interval.high)
            )
            factor = f"{mean:.3f} [{least:.3f}, {most:.3f}]"
            rows.append([arm, table, str(len(pairs)), told.text("+.4f", " "), factor])
    ratios = json.loads((RESULTS / PRICES).read_text())["prices"]
    prices = [f"{mode} {mean_estimate(ratios[mode]).text('.3f', ' ')}" for mode in ("full", "head")]
    return [
        "## What the gains are worth in steps",
        "",
        "All differences above are at equal steps. Plain training falls by",
        f"{' and '.join(slopes)} nats for an e-fold of steps",
        f"({TUNING_STEPS} and {REPORTED_STEPS} steps, each with a schedule of its own). By that",
        "slope it would reach the same loss with so many times the steps:",
        "",
        *markdown(["arm", "sampling", "seeds", "vs. plain [95 %]", "times the steps"], rows),
        "",
        f"A step costs in a run, over a plain one ([cost](cost.md)): {', '.join(prices)}.",
        "These rows were run in `full`: **at equal time they do not win**, since the gain is worth",
        "fewer steps than it costs. All of this is an estimate, from two lengths with different",
        "seeds and prices of other runs; `dograph compare --match time` measures it, and the first",
        "three seeds of that are in [the log](log.md): `full` above plain, `head` below, neither",
        "claimed.",
        "",
    ]


def nats_per_e_fold(cells: Cells, table: str, metric: str) -> float:
    """How far plain training falls from the shorter to the longer schedule, per unit of log."""
    short, long = (
        average(select(cells, table, steps)["plain"].values(), metric)
        for steps in (TUNING_STEPS, REPORTED_STEPS)
    )
    return (short - long) / math.log(REPORTED_STEPS / TUNING_STEPS)


def analyses(cells: Cells) -> list[str]:
    """The paper's analyses on tuning seeds."""
    return [
        "## The paper's analyses (400 steps, seeds 0 to 2, equal sampling)",
        "",
        "Objectives with the paper's recipe (`paper` uses uncertainty, the paper's choice;",
        "`precision` is ours):",
        "",
        *tuning_table(cells, "uniform", ("plain", *OBJECTIVES), "mean", "plain"),
        "",
        "Number of domains (`paper` has 11):",
        "",
        *tuning_table(cells, "uniform", NUM_DOMAINS, "mean", "paper"),
        "",
        "Scope and geometry of the domains (`paper`: K-means in each batch, Euclidean):",
        "",
        *tuning_table(cells, "uniform", SCOPES, "mean", "paper"),
        "",
        "Other variants, with equal and then with natural sampling (hints, not claims). *unit*:",
        "gradients are normalized; *q*: weight of a domain is its norm to the power -q; *sampled*:",
        "weights change the sampling, not the loss; *lawful*: sampled by the mixture of a transfer",
        "law ([log](log.md)); *kept*: every source keeps its total weight as sampled:",
        "",
        *tuning_table(cells, "uniform", TRIED, "mean", "plain"),
        "",
        *tuning_table(cells, "natural", TRIED, "natural", "plain"),
        "",
    ]


def merging(record: Mapping[str, Any]) -> list[str]:
    """The paper's Figure 1 and its figure of clusters, in numbers."""
    first, domains = record["artefacts"]["gradient-pca"], record["artefacts"]["clusters"]
    lines = [
        "## Do sources merge in training? (the paper's Figure 1)",
        "",
        "`dograph reproduce gradient-pca --methods equal` on the same corpus, seeds",
        f"{first['seeds'][0]} to {first['seeds'][-1]}:",
        "equal sample weights and equal sampling of sources; 512 held-out rows are sketched with",
        "the same projection during training. *separation*: unbiased MMD^2 between two sources",
        "over their spread, mean over pairs; *NMI*, *purity*: agreement of 11 domains (K-means of",
        "the rows' directions) with the sources. Intervals are over seeds",
        "([analyses](analyses.md)).",
        "",
    ]
    for label, found in first["results"]["methods"].items():
        rows = [
            [
                str(at["step"]),
                *(_estimate(at[name]) for name in FIGURES),
                f"{at['nmi_by_chance']:.3f}, {at['purity_by_chance']:.3f}",
            ]
            for at in found["figures"]
        ]
        lines += markdown(["step", *FIGURES.values(), "by chance (NMI, purity)"], rows)
        lines += ["", "![separation and NMI against step](pictures/merging.svg)", ""]
        lines += [f"- {v['line'].replace('last less', 'last minus')}" for v in first["verdicts"]]
        lines.append("")
        for step, table in domains["results"]["methods"][label]["composition"].items():
            lines += [f"Domains at step {step} (first seed), sources in per cent:", ""]
            lines += [*_composition(table), ""]
    return lines


def _estimate(found: Mapping[str, Any]) -> str:
    pair = found["interval"]
    return f"{found['value']:.3f} [{pair['low']:.3f}, {pair['high']:.3f}]"


def _composition(table: Mapping[str, Any]) -> list[str]:
    count_MS = np.array(table["rows"])
    size_M1 = count_MS.sum(axis=1, keepdims=True)
    share_MS = 100 * count_MS / np.maximum(size_M1, 1)
    rows = [
        [str(domain), str(size), *(f"{share:.0f}" if share else "" for share in share_S)]
        for domain, (size, share_S) in enumerate(zip(size_M1[:, 0], share_MS, strict=True), start=1)
    ]
    names = [name.removeprefix("RedPajama") for name in table["sources"]]
    return markdown(["domain", "rows", *names], rows)
