"""Write docs/results.md from the figures in benchmarks/results: python -m benchmarks.results_page

Then say which figures there differ from the last commit, and which of them got worse.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.evidence_arms import PARTS, PLANNED, PLANS, REPORTED_STEPS
from benchmarks.measure import RESULTS
from benchmarks.results_analyses import analyses, merging, reasons, worth
from benchmarks.results_changes import all_changes, report
from benchmarks.results_pictures import ByArm, draw, draw_merging
from benchmarks.results_tables import (
    Cells,
    curve_table,
    loss_table,
    markdown,
    select,
    source_table,
    task_table,
    verdicts,
)
from dograph.files import write_text

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
EVIDENCE = tuple(f"evidence-{part}-h200.json" for part in ("main", "second", "tuning"))
PROBES = "probes-h200.json"
ORDER = (
    *("natural sampling", "inverse-norm", "inverse-norm, all", "plain", "recommended"),
    *("recommended, kept", "safe", "paper", "dynamic-loss", "unit, sampled q=-1", *PLANNED),
)


def committed() -> tuple[dict[str, Any], dict[str, Any]]:
    """The cells of all files of evidence as one record, and the probes."""
    parts = [json.loads((RESULTS / file).read_text()) for file in EVIDENCE]
    cells = [cell for part in parts for cell in part["cells"]]
    return parts[0] | {"cells": cells}, json.loads((RESULTS / PROBES).read_text())


def page(record: Mapping[str, Any], probes: Mapping[str, Any]) -> str:
    """The whole page, from the cells and from the probes of `dograph reproduce`."""
    cells: Cells = record["cells"]
    main, second, shares = two_tables(cells)
    beside = dict(main) | {"natural sampling": second["plain"]}
    return "\n".join(
        [
            *opening(record),
            *findings(main, second),
            "",
            "## Main table: equal sampling of sources, judged by the mean over sources",
            "",
            *loss_table(beside, ORDER, "mean", shares),
            "",
            "![differences to plain, equal sampling](pictures/every-source-alike.svg)",
            "",
            "Means are over the seeds of a row, differences over the seeds that both rows have.",
            "*vs. plain*: method minus plain, paired by seed, below 0 is better; *over text*:",
            "interval over validation blocks; *worst*: the source with the largest loss; *gap*:",
            "worst minus best; *effective*: 1 over the sum of squared sample weights.",
            "*recommended* and *safe* are our recipes ([recipes](dograph.md)), *paper* is the",
            "paper's.",
            "",
            "*natural sampling* draws sources in proportion to their tokens, the usual choice;",
            "*inverse-norm* normalizes each sample's gradient and needs no domains. They come",
            "first because a gain that they also have does not come from DoGraph's domains. The",
            "rows of inverse norms use persistent domains (`safe`), which exist after ten steps;",
            "until then all samples have equal weight. *recommended* sets weights from the first",
            "step on.",
            "",
            "**The rivals are untuned, their proxies short** (see [planned](#planned-mixtures)).",
            "In brackets is the surrogate of a plan. The row of RegMix is not LightGBM RegMix:",
            "LightGBM cannot split fewer than 40 runs and predicted a constant on these 32",
            "proxies, so cross-validation chose the exponential law, which is also that of the",
            "mixing law's row. The two rows differ only in how the mixture is taken from the fit:",
            "the mean of the best simulated mixtures, and the exact optimum.",
            "",
            *source_table(beside, ORDER, shares),
            "",
            "In brackets: difference to plain; `!`: claimed (Holm over the table, 5 seeds).",
            "",
            "## Second table: natural sampling, judged by the natural-weighted loss",
            "",
            *loss_table(second, ORDER, "natural", shares),
            "",
            "![differences to plain, natural sampling](pictures/by-tokens.svg)",
            "",
            "## Training loss minus plain's on the same batches (main table)",
            "",
            *curve_table(main, ORDER),
            "",
            "![training loss minus plain's](pictures/curves.svg)",
            "",
            *worth(cells),
            *reasons(main, second),
            *tasks(cells),
            *merging(probes),
            *analyses(cells),
            *plans(),
            *missing(cells),
        ]
    )


def two_tables(cells: Cells) -> tuple[ByArm, ByArm, Mapping[str, float]]:
    """The main table, the second one, and the natural shares of the sources."""
    second = select(cells, "natural", REPORTED_STEPS)
    shares = next(iter(second["plain"].values()))["mixture"]
    return select(cells, "uniform", REPORTED_STEPS), second, shares


def pictures(record: Mapping[str, Any], probes: Mapping[str, Any]) -> list[Path]:
    main, second, shares = two_tables(record["cells"])
    tables = {
        "every-source-alike": (dict(main) | {"natural sampling": second["plain"]}, "mean"),
        "by-tokens": (second, "natural"),
    }
    folder = PAGE.parent / "pictures"
    return [*draw(folder, tables, ORDER, shares), draw_merging(folder, probes)]


def opening(record: Mapping[str, Any]) -> list[str]:
    machine, config = record["machine"], record["config"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        "# Results",
        "",
        "This page compares the methods, with seeds, intervals and claims.",
        "",
        "Made by `make results` from `evidence-*-h200.json` and `probes-h200.json` in",
        "`benchmarks/results`; do not edit by hand.",
        "",
        "GPT-2 Mini (12 layers, 768 wide), 48 x 512 tokens per step, 700 steps (17.2M tokens),",
        "AdamW 0.9, 0.95, learning rate 5e-4 to 1e-4, 100 steps of warm-up, bf16, compiled;",
        "36M tokens of text under SlimPajama's seven labels, 8 strata each (corpus digest",
        f"`{config['corpus'][:12]}`); {', '.join(machine['gpus'])}; {versions}.",
        "Losses in nats on 128 blocks per source. Tuning seeds are 0 to 2, reported ones 10 to 14",
        "(second table: 10 to 12); arms were named and committed before these ran ([log](log.md)).",
        "Intervals are paired t intervals over seeds; a claim needs 5 seeds and a Holm-adjusted p",
        "of at most 0.05 ([compare](compare.md)). To repeat: `python -m benchmarks.evidence CORPUS",
        "--parts sceptic chosen kept online planned --compile --out FOLDER --into FILE.json`;",
        "other parts are in `benchmarks/evidence_arms.py`.",
        "",
    ]


def findings(main: ByArm, second: ByArm) -> list[str]:
    """The main differences; Holm over these lines."""
    pairs_of: dict[str, list[float]] = {}
    for title, by_arm, metric in (
        ("equal sampling, mean over sources", main, "mean"),
        ("natural sampling, natural-weighted", second, "natural"),
    ):
        for arm in ("inverse-norm", "recommended", "paper"):
            for base in ("plain", "inverse-norm"):
                own, other = by_arm.get(arm, {}), by_arm.get(base, {})
                seeds = sorted(set(own) & set(other))
                if arm == base or not seeds:
                    continue
                pairs_of[f"{title}: **{arm} vs. {base}**"] = [
                    own[s]["summaries"][metric] - other[s]["summaries"][metric] for s in seeds
                ]
    told = zip(pairs_of.items(), verdicts(list(pairs_of.values())), strict=True)
    return [
        "## Summary",
        "",
        *(
            f"- {name}: {shown}, {len(pairs)} seeds: {word}"
            for (name, pairs), (shown, word) in told
        ),
    ]


def tasks(cells: Cells) -> list[str]:
    return [
        "## Nine downstream tasks, one model per arm (seed 10, all items)",
        "",
        *task_table(cells, ORDER, bits=False),
        "",
        "Per cent, acc_norm for tasks that have it, ± the standard error over items. After 17M",
        "tokens models are at chance on most tasks; bits per byte of the right answer improve",
        "earlier:",
        "",
        *task_table(cells, ORDER, bits=True),
        "",
    ]


def plans() -> list[str]:
    """The planned mixtures."""
    mixtures = {
        method: yaml.safe_load((PLANS / f"{method}.yaml").read_text())["weights"]
        for method in PLANNED
    }
    sources = list(mixtures[PLANNED[0]])
    rows = [
        [method, *(f"{weights.get(source, 0):.3f}" for source in sources)]
        for method, weights in mixtures.items()
    ]
    return [
        "## Planned mixtures",
        "",
        "DoReMi and DoGE (`mixer.alignment=same_batch`) with 6-layer proxies of 400 steps, whose",
        "weights had not settled (the last were 0.27 from their average), RegMix and the mixing",
        "law from the",
        "same 32 proxies of 4 layers and 350 steps (`benchmarks/results/plans`):",
        "",
        *markdown(["method", *(source.removeprefix("RedPajama") for source in sources)], rows),
        "",
    ]


def missing(cells: Cells) -> list[str]:
    """Cells that were planned and have not been run."""
    names = ("table", "arm", "seed", "steps", "preset")
    there = {" ".join(str(cell[name]) for name in names) for cell in cells}
    gaps: dict[tuple[str, str], list[int]] = {}
    for cell in dict.fromkeys(cell for part in PARTS.values() for cell in part):
        if cell.key not in there:
            gaps.setdefault((cell.table, f"{cell.arm}, {cell.steps} steps"), []).append(cell.seed)
    if not gaps:
        return []
    told = [f"- {table}: {arm}, seeds {_list(seeds)}" for (table, arm), seeds in gaps.items()]
    return ["## Not run yet", "", *told, ""]


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


if __name__ == "__main__":
    figures, seen = committed()
    write_text(PAGE, page(figures, seen))
    print(PAGE, *pictures(figures, seen), *report(all_changes()), sep="\n")
