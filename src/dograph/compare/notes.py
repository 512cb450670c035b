"""What a reader of the tables must know, a line each."""

from collections.abc import Mapping
from typing import Any

from dograph.stats import LEAST_SEEDS


def notes_of(findings: Mapping[str, Any]) -> list[str]:
    """Lines to print under the tables."""
    notes = [_pairing(findings), _claims(findings)]
    methods = findings["methods"]
    shared = [m["label"] for m in methods if m["one_plan_for_all_seeds"]]
    if shared and len(findings["seeds"]) > 1:
        notes.append(
            f"one plan serves all seeds of {', '.join(shared)} (marked *): their intervals do not "
            "hold how much the plan itself varies; --replan makes one for each seed"
        )
    if any(method["plans"] for method in methods):
        notes.append(
            "FLOPs and time hold the plan's proxies in full, for each run: what training once costs"
        )
    if findings["budget"] == "compute":
        notes.append(
            "equal compute: every run has the FLOPs of the dearest at train.steps="
            f"{findings['config']['train']['steps']}; the learning rate is stretched to its steps"
        )
    notes += _epochs(findings)
    notes += [f"failed: {error}" for error in findings["failures"].values()]
    return notes


def _pairing(findings: Mapping[str, Any]) -> str:
    return (
        f"differences are to {findings['baseline']}, seed by seed; [ ] is their 95 % t interval "
        "over seeds, and text the 95 % bootstrap interval over validation blocks of these runs"
    )


def _claims(findings: Mapping[str, Any]) -> str:
    number = len(findings["seeds"])
    if number < LEAST_SEEDS:
        return (
            f"no claim is made: {number} seed{'s' if number > 1 else ''}, and a claim needs "
            f"{LEAST_SEEDS}; the same command with --seeds {LEAST_SEEDS} adds what is missing"
        )
    return "p is Holm's, over the rows; lower and higher are claimed where it is at most 0.05"


def _epochs(findings: Mapping[str, Any]) -> list[str]:
    most = findings["config"]["data"]["warn_epochs"]
    found = []
    for method in findings["methods"]:
        over = {n: e for n, e in method.get("epochs", {}).items() if e > most}
        if over:
            named = ", ".join(f"{name} {times:.1f} times" for name, times in over.items())
            found.append(
                f"warning: {method['label']} read through {named}, more than "
                f"data.warn_epochs={most:g}"
            )
    return found
