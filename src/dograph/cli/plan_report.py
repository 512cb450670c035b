"""What `dograph plan` ends with: shares, cost, warnings, how to use the file."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from dograph.cli.cli_console import duration, open_console
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.mixers.base import Mixer
from dograph.plan.planning import PlanCost
from dograph.train.assembly import open_sampler
from dograph.train.forecast import planned_epochs, repeat_warnings
from dograph.types import Mixture


def print_shares(
    weights: Mapping[str, float],
    before: Mapping[str, float],
    before_name: str,
    run: RunConfig | None = None,
    corpus: Corpus | None = None,
) -> None:
    """Sources down: their share of what is there (or of the prior), of the plan, times read."""
    epochs = {} if run is None or corpus is None else _epochs(run, corpus, Mixture(weights))
    table = Table(box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    for title in (before_name, "planned", *(["epochs"] if epochs else [])):
        table.add_column(title, justify="right", no_wrap=True)
    total = sum(before.values())
    for name in [*before, *(name for name in weights if name not in before)]:
        cells = [f"{before.get(name, 0) / total:.4f}", f"{weights.get(name, 0):.4f}"]
        cells += [f"{epochs.get(name, 0):.2f}"] if epochs else []
        table.add_row(name, *cells)
    open_console().print(table, highlight=False)
    shares = {
        "natural": "natural: share of the corpus' tokens",
        "prior": "prior: the mixture that the plan starts from",
    }
    read = "; epochs: how often the run will read a source through" if epochs else ""
    print(f"{shares[before_name]}{read}")


def _epochs(run: RunConfig, corpus: Corpus, mixture: Mixture) -> dict[str, float]:
    sampler = open_sampler(run, corpus)
    sampler.remix(0, mixture, reason="plan")
    return planned_epochs(run, sampler, Mixer())


def print_cost(cost: PlanCost) -> None:
    cached = f" ({cost.cached} made before)" if cost.cached else ""
    print(
        f"cost: {cost.proxies} proxies{cached}, {duration(cost.seconds)} of training, "
        f"{cost.flops:.2e} FLOPs"
    )


def print_notes(
    findings: Mapping[str, Any],
    run: RunConfig | None = None,
    corpus: Corpus | None = None,
    mixture: Mixture | None = None,
) -> None:
    """What the plan's reader should know; it goes to stderr, as warnings do."""
    lines = [f"note: {text}" for text in findings.get("notes", [])]
    lines += [f"advice: {text}" for text in findings.get("advice", [])]
    if run is not None and corpus is not None and mixture is not None:
        sampler = open_sampler(run, corpus)
        sampler.remix(0, mixture, reason="plan")
        lines += [f"warning: {text}" for text in repeat_warnings(run, sampler, Mixer())]
    for line in lines:
        print(line, file=sys.stderr)


def print_fit(findings: Mapping[str, Any]) -> None:
    """How far the fit may be trusted: on runs it has not seen, then what it expects."""
    chosen = findings["surrogate"]
    print(f"surrogate: {chosen['name']}: {chosen['why']}")
    for name, scores in chosen["cross_validated"].items():
        print(f"  {name} on left-out runs: {_scores(scores)}")
    held_out = findings.get("held_out")
    if held_out is not None:
        parts = held_out["targets"] | (
            {"the objective": held_out["objective"]} if held_out["objective"] else {}
        )
        for name, scores in parts.items():
            print(f"  {name} on the test table ({held_out['runs']} runs): {_scores(scores)}")
        for note in held_out["notes"]:
            print(f"note: {note}", file=sys.stderr)
    for row in findings.get("simulation", {}).get("sensitivity", []):
        print(
            f"  averaging the best {row['top']}: predicted loss {row['predicted_loss']:.4f}, "
            f"{row['distance']:.3f} (L1) from the plan"
        )
    predicted = findings["predicted"]
    best = predicted["best_run"]
    print(
        f"predicted loss: {predicted['proposal']:.4f}, of the prior {predicted['prior']:.4f}; best "
        f"run of the table: {best['run']}, {best['measured']:.4f} measured, "
        f"{best['predicted']:.4f} predicted"
    )


def _scores(scores: Mapping[str, Any]) -> str:
    kinds = (("Spearman", "spearman"), ("Pearson", "pearson"), ("mean error", "mean_error"))
    told = [f"{title} {scores[key]:.4f}" for title, key in kinds if scores[key] is not None]
    return ", ".join([*told, *([scores["note"]] if scores["note"] else [])])


def print_use(out: Path, settings: list[str]) -> None:
    """The command that trains with the file."""
    kept = [setting for setting in settings if not setting.startswith("mixer.")]
    use = ["dograph", "train", *kept, "mixer.name=static", f"mixer.file={out}"]
    print(f"{out} is written. Train with it: {shlex.join(use)}")
