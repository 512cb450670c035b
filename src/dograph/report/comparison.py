"""Comparisons on a page, the verdict above it, and names of runs and methods."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.compare.findings import Findings, MethodFindings
from dograph.config import RunConfig
from dograph.report.one_run import RunData
from dograph.stats import mean_estimate

# Settings that may differ between runs of a group: the seed, and those that change no number.
_FREE = ("seed", "run", "log", "checkpoint", "probe")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `dograph compare`."""

    title: str
    findings: Findings

    @property
    def methods(self) -> list[MethodFindings]:
        """Methods that have losses; the notes name those that failed."""

        def is_known(method: MethodFindings) -> bool:
            means = [spread.mean for spread in method.sources.values()]
            return bool(means) and all(map(math.isfinite, means))

        return [method for method in self.findings.methods if is_known(method)]

    @property
    def sources(self) -> list[str]:
        return list(next((method.sources for method in self.methods), ()))

    @property
    def claim(self) -> str:
        """Which methods are lower than the baseline, which higher, and which are neither."""
        baseline = self.findings.baseline
        others = [method for method in self.methods if method.difference("mean")]
        if not others:
            return f"No method can be compared with {baseline}."
        best = min(others, key=_mean_difference)
        lead = f"No mean loss is below that of {baseline}; the closest is {best.label}"
        if _mean_difference(best) < 0:
            lead = f"The lowest mean loss is that of {best.label}"
        lowest = f"{lead}: {self._difference(best)}."
        groups: dict[str, list[MethodFindings]] = {}
        for method in others:
            assert method.differences is not None
            groups.setdefault(method.differences.mean.claim, []).append(method)
        sentences = []
        for claim, largest in (("lower", min), ("higher", max)):
            if claimed := groups.pop(claim, []):
                top = largest(claimed, key=_mean_difference)
                sentences.append(
                    f"{claim.capitalize()} mean loss than {baseline}: {_names(claimed)}. "
                    f"Largest difference: {top.label}, {self._difference(top)}."
                )
        is_all = not sentences and len(groups) == 1  # then methods need not be named
        for claim, unclaimed in groups.items():
            lead = "No significant difference" if claim == "unclear" else "No claim"
            reason = claim.removeprefix("unclear").removeprefix("no claim")
            which = "" if is_all else f" for {_names(unclaimed)}"
            sentences.append(f"{lead}{which}{reason}.")
        has_lower = sentences and sentences[0].startswith("Lower")
        return " ".join(sentences if has_lower else [*sentences, lowest])

    def _difference(self, method: MethodFindings) -> str:
        assert method.differences is not None
        nats = method.differences.mean.estimate.text("+.4f", " ")
        seeds = f"{method.seeds} seed{'s' if method.seeds > 1 else ''}"
        return f"{nats} nats vs. {self.findings.baseline}, {seeds}"


def _mean_difference(method: MethodFindings) -> float:
    assert method.differences is not None
    return method.differences.mean.mean


def _names(methods: Sequence[MethodFindings]) -> str:
    return ", ".join(method.label for method in methods)


def verdict_of(runs: Sequence[RunData], comparisons: Sequence[Comparison]) -> str:
    """The result in one or two sentences: that of the first comparison, or of the runs."""
    if comparisons:
        return comparisons[0].claim
    if not runs:
        return "There are no runs yet."
    if len(runs) == 1:
        return _single_verdict(runs[0])
    losses = {run.name: run.losses["mean"] for run in runs if "mean" in run.losses}
    if not losses:
        return f"{len(runs)} runs, none of them validated yet."
    unfinished = sum(not run.is_complete for run in runs)
    if len(losses) == len(runs) and not unfinished and len({run.group for run in runs}) == 1:
        mean = mean_estimate([nats.value for nats in losses.values()]).text(".4f", " ")
        seeds = f"{len(runs)} seeds of {runs[0].group}"
        return f"{seeds}: mean validation loss {mean} nats (95 % interval over seeds)."
    best = min(losses, key=lambda name: losses[name].value)
    why = f"{unfinished} not complete" if unfinished else "They were selected by hand"
    return (
        f"{len(runs)} runs; the lowest mean validation loss is that of {best}: "
        f"{losses[best].text('.4f', ' ')} nats. {why}, so no claim is made."
    )


def _single_verdict(run: RunData) -> str:
    progress = f"Complete after {run.steps:,} steps"
    if not run.is_complete:
        progress = f"{run.steps:,} of {run.config.train.steps:,} steps done"
    mean, nmi = run.losses.get("mean"), run.curves.get("domains/nmi")
    loss = f"mean validation loss {mean.text('.4f', ' ')} nats" if mean else ""
    parts = [f"{progress}: {loss or 'no validation loss yet'}"]
    if nmi is not None:
        last = (nmi.raw or nmi).y[-1]
        parts.append(f"agreement of domains and sources {last:.2f} (NMI, at most 1)")
    if count := len(run.warnings):
        parts.append(f"{count} warning{'s' if count > 1 else ''}")
    return "; ".join(parts) + "."


def run_names(paths: Sequence[Path]) -> list[str]:
    """The names of folders, with as many parent folders as make them unique."""
    parts, names = [path.resolve().parts for path in paths], list[str]()
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            break
    return names


def group_names(
    configs: Sequence[RunConfig], methods: Sequence[tuple[str, str] | None]
) -> list[str]:
    """The same name for runs that differ only in their seed, different names for others.

    `methods` are the comparison and the method's label in it, or None: the label is the name, with
    the comparison before it if another run has it too. Other runs are named by their mixer and the
    settings that differ from other runs of this mixer.
    """
    flat = [_flat(config.model_dump(mode="json", exclude=set(_FREE))) for config in configs]
    names: list[str] = []
    for own, method in zip(flat, methods, strict=True):
        if method is not None:
            names.append(method[1])
            continue
        mixer = own["mixer.name"]
        others = [
            other
            for other, of in zip(flat, methods, strict=True)
            if of is None and other["mixer.name"] == mixer
        ]
        different = [key for key in sorted(own) if len({o.get(key) for o in others}) > 1]
        parts = [f"{key.removeprefix('mixer.')}={own[key]}" for key in different]
        names.append(" ".join([mixer, *parts]))
    owners: dict[str, set[tuple[str, str] | None]] = {}
    for name, method in zip(names, methods, strict=True):
        owners.setdefault(name, set()).add(method)
    return [
        f"{method[0]}: {method[1]}" if method and len(owners[name]) > 1 else name
        for name, method in zip(names, methods, strict=True)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their dotted names, written as on the command line."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "train.device":
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return flat
