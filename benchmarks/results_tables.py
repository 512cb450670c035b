"""Tables of docs/results.md from the cells of benchmarks.evidence.

Shapes: N seeds, S sources, n blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from benchmarks.evidence_arms import PLANNED, PLANS, REPORTED_STEPS, TUNING_STEPS
from dograph.compare.findings import Contrast, Contrasts, RunLosses, contrasts
from dograph.stats import METRICS, claim, holm, mean_estimate, paired_difference

Cells = Sequence[Mapping[str, Any]]
PRESET = "gpt2-mini"
PREDICTIONS = 511  # of a block of 512 tokens
TASKS = (
    "hellaswag",
    "piqa",
    "openbookqa",
    "copa",
    "logiqa",
    "winogrande",
    "sciq",
    "arc_easy",
    "lambada_openai",
)


def select(cells: Cells, table: str, steps: int) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Cells of a table by arm and seed, of one model size."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for cell in cells:
        if (cell["table"], cell["steps"], cell["preset"]) == (table, steps, PRESET):
            found.setdefault(cell["arm"], {})[cell["seed"]] = cell
    return found


def runs_of(cell: Mapping[str, Any]) -> RunLosses:
    blocks = {
        source: (np.full(len(losses), float(PREDICTIONS)), np.array(losses))
        for source, losses in cell.get("blocks", {}).items()
    }
    return RunLosses(cell["losses"], cell["summaries"], blocks)


def compared(
    by_arm: Mapping[str, Mapping[int, Mapping[str, Any]]],
    baseline: str,
    shares: Mapping[str, float],
) -> dict[str, Contrasts]:
    """Every arm against the baseline, paired by seed, Holm over the arms."""
    runs = {arm: {s: runs_of(cell) for s, cell in own.items()} for arm, own in by_arm.items()}
    others = [arm for arm in by_arm if arm != baseline]
    # Only shares matter; contrasts takes tokens.
    tokens = {source: round(1e9 * share) for source, share in shares.items()}
    return contrasts(runs, baseline, others, tokens)


def with_surrogate(arm: str) -> str:
    """The name of a row; of a planned arm with the surrogate of its plan, if one was fitted."""
    if arm not in PLANNED:
        return arm
    findings = yaml.safe_load((PLANS / f"{arm}.yaml").read_text())["findings"]
    return f"{arm} ({findings['surrogate']['name']})" if "surrogate" in findings else arm


def loss_table(
    by_arm: Mapping[str, Mapping[int, Mapping[str, Any]]],
    order: Sequence[str],
    metric: str,
    shares: Mapping[str, float],
) -> list[str]:
    """One row per arm: the metric, its differences to plain and to inverse-norm, other metrics."""
    to_plain = compared(by_arm, "plain", shares)
    to_norm = compared(by_arm, "inverse-norm", shares) if "inverse-norm" in by_arm else {}

    def figure(of: Mapping[str, Contrasts], arm: str) -> Contrast | None:
        return of[arm][metric] if arm in of else None

    rest = [name for name in METRICS if name != metric]
    rows = [
        [
            with_surrogate(arm),
            str(len(by_arm[arm])),
            f"{average(by_arm[arm].values(), metric):.4f}",
            *difference(figure(to_plain, arm)),
            difference(figure(to_norm, arm))[0],
            *(f"{average(by_arm[arm].values(), name):.3f}" for name in rest),
            effective(by_arm[arm].values()),
        ]
        for arm in order
        if arm in by_arm
    ]
    head = [
        *("arm", "seeds", metric, "vs. plain [95 %]", "over text", "claim"),
        *("vs. inverse-norm [95 %]", *rest, "effective of 48"),
    ]
    return markdown(head, rows)


def source_table(
    by_arm: Mapping[str, Mapping[int, Mapping[str, Any]]],
    order: Sequence[str],
    shares: Mapping[str, float],
) -> list[str]:
    """Losses by source, and their differences to plain; `!` if claimed (Holm over the table)."""
    to_plain = compared(by_arm, "plain", shares)
    sources = list(shares)
    rows = []
    for arm in order:
        if arm not in by_arm:
            continue
        own, row = by_arm[arm], [arm]
        for source in sources:
            loss = float(np.mean([cell["losses"][source] for cell in own.values()]))
            told = to_plain[arm].sources[source] if arm in to_plain else None
            mark = "!" if told and told.is_claimed else ""
            row.append(f"{loss:.3f}" + (f" ({told.mean:+.3f}{mark})" if told else ""))
        rows.append(row)
    return markdown(["arm", *(source.removeprefix("RedPajama") for source in sources)], rows)


def tuning_table(
    cells: Cells, table: str, arms: Sequence[str], metric: str, baseline: str
) -> list[str]:
    """Arms of 400 steps: mean with a t interval over seeds, and the difference to a baseline."""
    by_arm, rows = select(cells, table, TUNING_STEPS), []
    for arm in arms:
        own, base = by_arm.get(arm, {}), by_arm.get(baseline, {})
        if not own:
            continue
        told = paired_difference(
            {seed: cell["summaries"][metric] for seed, cell in own.items()},
            {seed: cell["summaries"][metric] for seed, cell in base.items()},
        )
        rows.append(
            [
                arm,
                str(len(own)),
                f"{average(own.values(), metric):.3f}" if own else "",
                told.text("+.3f", " ") if arm != baseline and told.num else "",
                f"{average(own.values(), 'worst'):.3f}" if own else "",
                effective(own.values()) if own else "",
            ]
        )
    head = ["arm", "seeds", metric, f"vs. {baseline} [95 %]", "worst", "effective of 48"]
    return markdown(head, rows)


def task_table(cells: Cells, order: Sequence[str], bits: bool) -> list[str]:
    """Nine tasks, one model per arm: accuracies, or bits per byte of the right answers."""
    rows = []
    for cell in cells:
        if "tasks" not in cell or (cell["steps"], cell["preset"]) != (REPORTED_STEPS, PRESET):
            continue
        name = cell["arm"] if cell["table"] == "uniform" else f"{cell['arm']}, by tokens"
        tasks = cell["tasks"]
        if bits:
            scores = [tasks[task]["bits_per_byte"] for task in TASKS]
            shown = [f"{score['value']:.3f}" for score in scores]
            total = f"{np.mean([score['value'] for score in scores]):.4f}"
        else:
            scores = [tasks[task][tasks[task]["primary"]] for task in TASKS]
            shown = [f"{100 * score['value']:.1f} ± {100 * score['se']:.1f}" for score in scores]
            overall = tasks["average"]
            total = f"{100 * overall['value']:.2f} ± {100 * overall['se']:.2f}"
        place = order.index(cell["arm"]) if cell["arm"] in order else len(order)
        rows.append((cell["table"] != "uniform", place, [name, *shown, total]))
    head = ["arm", *(task.removesuffix("_openai") for task in TASKS), "average"]
    return markdown(head, [row for _, _, row in sorted(rows)])


def curve_table(
    by_arm: Mapping[str, Mapping[int, Mapping[str, Any]]], order: Sequence[str], points: int = 7
) -> list[str]:
    """Training loss minus plain's on the same batches, averaged over stretches of the run."""
    rows, head = [], ["arm"]
    for arm in order:
        own, base = by_arm.get(arm, {}), by_arm["plain"]
        seeds = [seed for seed in own if seed in base and same_batches(own[seed], base[seed])]
        if arm == "plain" or not seeds:
            continue
        curve_N = np.array([[x for _, x in own[s]["curve"]] for s in seeds])
        plain_N = np.array([[x for _, x in base[s]["curve"]] for s in seeds])
        step = [x for x, _ in own[seeds[0]]["curve"]]
        parts = np.array_split(np.arange(len(step)), points)
        head = ["arm", *(f"{step[part[0]]} to {step[part[-1]]}" for part in parts)]
        gap_N = curve_N - plain_N
        rows.append([arm, *(f"{gap_N[:, part].mean():+.3f}" for part in parts)])
    return markdown(head, rows)


def same_batches(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs were trained on the same samples, so that their curves can be compared."""
    return "curve" in one and "curve" in other and one["mixture"] == other["mixture"]


def average(cells: Iterable[Mapping[str, Any]], metric: str) -> float:
    return float(np.mean([cell["summaries"][metric] for cell in cells]))


def effective(cells: Iterable[Mapping[str, Any]]) -> str:
    """Range of the effective samples over a run, without its first value."""
    values = [x for cell in cells for x in cell["effective"][1:] if x is not None]
    if not values:
        return "48"
    low, high = round(min(values)), round(max(values))
    return str(low) if low == high else f"{low} to {high}"


def difference(told: Contrast | None) -> tuple[str, str, str]:
    """Over seeds, over text, and the claim."""
    if told is None:
        return "", "", ""
    text = "" if told.over_items is None else told.over_items.text("+.4f", " ")
    few = told.claim.startswith("no claim")
    over_seeds = told.estimate.text("+.4f", " ") if told.seeds else ""
    return over_seeds, text, "none, too few seeds" if few else told.claim


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with its numbers on the right."""
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def verdicts(pairs_of: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Mean differences with their intervals, and the claims that hold for all at once (Holm)."""
    all_told = [mean_estimate(pairs) for pairs in pairs_of]
    adjusted = holm([told.p_value for told in all_told])
    return [
        (told.text("+.4f", " "), claim(told, p_holm))
        for told, p_holm in zip(all_told, adjusted, strict=True)
    ]
