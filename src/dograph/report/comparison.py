"""Methods compared: from compare.json, or from runs that were trained with the same settings."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.compare.findings import Contrast, Findings, Spread
from dograph.config import RunConfig
from dograph.errors import DographError
from dograph.mixers.registry import build_mixer
from dograph.report.one_run import RunData
from dograph.stats import METRICS, Estimate, mean_estimate, t_interval

# Settings that may differ between runs of a group: the seed, and those that change no number.
_FREE = ("seed", "run", "log", "checkpoint", "probe")
Points = list[tuple[int, Estimate]]  # mean loss by model size or number of domains


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method of a comparison."""

    name: str
    mixer: dict[str, Any]
    seeds: int
    losses: dict[str, Estimate]  # mean, natural, worst, gap, and every source
    differences: dict[str, Contrast]  # to the baseline, by the same names; negative is better
    costs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods that were trained with the same settings."""

    title: str
    baseline: str
    sources: list[str]
    parameters: int | None
    command: str | None  # that reproduces the comparison
    is_planned: bool  # by dograph compare, whose tests are corrected for multiple comparisons
    methods: list[MethodRow]
    notes: list[str]

    @property
    def claim(self) -> str:
        """Which methods are lower than the baseline, which higher, and which are neither."""
        others = [method for method in self.methods if "mean" in method.differences]
        if not others:
            return f"No method can be compared with {self.baseline}."
        best = min(others, key=_mean_difference)
        lead = f"No mean loss is below that of {self.baseline}; the closest is {best.name}"
        if _mean_difference(best) < 0:
            lead = f"The lowest mean loss is that of {best.name}"
        lowest = f"{lead}: {self._difference(best)}."
        if not self.is_planned:
            return f"{lowest} These runs were selected by hand, so no claim is made."
        groups: dict[str, list[MethodRow]] = {}
        for method in others:
            groups.setdefault(method.differences["mean"].claim or "no claim", []).append(method)
        sentences = []
        for claim, largest in (("lower", min), ("higher", max)):
            if claimed := groups.pop(claim, []):
                top = largest(claimed, key=_mean_difference)
                sentences.append(
                    f"{claim.capitalize()} mean loss than {self.baseline}: {_names(claimed)}. "
                    f"Largest difference: {top.name}, {self._difference(top)}."
                )
        is_all = not sentences and len(groups) == 1  # then methods need not be named
        for claim, unclaimed in groups.items():
            lead = "No significant difference" if claim == "unclear" else "No claim"
            reason = claim.removeprefix("unclear").removeprefix("no claim")
            which = "" if is_all else f" for {_names(unclaimed)}"
            sentences.append(f"{lead}{which}{reason}.")
        has_lower = sentences and sentences[0].startswith("Lower")
        return " ".join(sentences if has_lower else [*sentences, lowest])

    def _difference(self, method: MethodRow) -> str:
        nats = method.differences["mean"].estimate.text("+.4f", " ")
        seeds = f"{method.seeds} seed{'s' if method.seeds > 1 else ''}"
        return f"{nats} nats vs. {self.baseline}, {seeds}"


def _mean_difference(method: MethodRow) -> float:
    return method.differences["mean"].mean


def _names(methods: Sequence[MethodRow]) -> str:
    return ", ".join(method.name for method in methods)


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
    why = f"{unfinished} not complete" if unfinished else "Their settings differ"
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


def from_findings(findings: Findings, title: str, parameters: int | None) -> Comparison:
    """The result of `dograph compare`, without methods that failed; its notes name them."""
    rows, sources = [], list[str]()
    for method in findings.methods:
        means = [spread.mean for spread in method.sources.values()]
        if not means or not all(map(math.isfinite, means)):
            continue
        sources = sources or list(method.sources)
        assert method.seconds is not None
        assert method.most_epochs is not None
        spreads = method.losses | method.sources
        differences: dict[str, Contrast] = {}
        if own := method.differences:
            differences = {name: own[name] for name in METRICS} | own.sources
        flops, most = method.flops, method.most_epochs
        rows.append(
            MethodRow(
                name=method.label,
                mixer=dict(method.mixer),
                seeds=method.losses["mean"].seeds,
                losses={name: spread_estimate(spread) for name, spread in spreads.items()},
                differences={
                    name: difference
                    for name, difference in differences.items()
                    if difference.seeds and math.isfinite(difference.mean)
                },
                costs={
                    "FLOPs, with planning": f"{flops.total:.3g}",
                    "planning, % of FLOPs": f"{flops.plan / flops.total:.0%}",
                    "time, s": f"{method.seconds.total:.0f}",
                    "peak memory, GiB": f"{(method.peak_bytes or 0) / 2**30:.2f}",
                    "most repeated source": f"{most.source}, {most.epochs:.2f} epochs",
                },
            )
        )
    return Comparison(
        title=title,
        baseline=findings.baseline,
        sources=sources,
        parameters=parameters,
        command=findings.command,
        is_planned=True,
        methods=rows,
        notes=list(findings.notes),
    )


def spread_estimate(spread: Spread) -> Estimate:
    """A mean over seeds with its t interval; no interval for a single seed."""
    if spread.deviation is None or spread.seeds < 2 or not math.isfinite(spread.deviation):
        return Estimate(spread.mean)
    error = spread.deviation / math.sqrt(spread.seeds)
    return Estimate(spread.mean, t_interval(spread.mean, error, spread.seeds - 1))


def from_runs(runs: Sequence[RunData]) -> list[Comparison]:
    """Comparisons of complete runs that dograph compare did not make.

    Two or more methods are compared if all settings that change a loss are equal.
    """
    by_settings: dict[str, dict[str, list[RunData]]] = {}
    for run in runs:
        if run.label is None and run.is_complete and run.losses:
            values = run.config.model_dump(mode="json")
            parts = {name: values[name] for name in ("data", "model", "optim", "eval")}
            train = {k: values["train"][k] for k in ("steps", "batch_size", "dtype")}
            same = by_settings.setdefault(json.dumps([parts, train], sort_keys=True), {})
            same.setdefault(run.group, []).append(run)
    return [
        _compare_runs(list(groups.values())) for groups in by_settings.values() if len(groups) > 1
    ]


def _compare_runs(groups: Sequence[list[RunData]]) -> Comparison:
    """The natural mixture is the baseline, or else the first method."""
    configs = [own[0].config for own in groups]
    names = group_names(configs, [None] * len(groups))  # shorter: only what differs in here
    mixers = [(config.mixer.name, config.mixer.options) for config in configs]
    at = mixers.index(("natural", {})) if ("natural", {}) in mixers else 0
    losses = [{run.config.seed: _losses(run) for run in own} for own in groups]
    methods = [
        _method_row(name, own, losses[k], losses[at] if k != at else {})
        for k, (name, own) in enumerate(zip(names, groups, strict=True))
    ]
    model, first = configs[0].model, groups[0][0]
    return Comparison(
        title=f"{model.preset or model.path}, {first.steps:,} steps",
        baseline=names[at],
        sources=groups[at][0].sources,
        parameters=first.parameters,
        command=None,
        is_planned=False,
        methods=[methods.pop(at), *methods],
        notes=[
            f"Differences are to {names[at]}, paired by seed; intervals are 95 % t intervals over "
            "seeds. Runs selected by hand support no claim; use dograph compare for one."
        ],
    )


def _losses(run: RunData) -> dict[str, float]:
    """Losses of all sources and summaries."""
    values = {name: estimate.value for name, estimate in run.losses.items()}
    sources = [values[name] for name in run.sources]
    return values | {"gap": max(sources) - min(sources)}


def _method_row(
    name: str,
    runs: list[RunData],
    losses: Mapping[int, Mapping[str, float]],
    base: Mapping[int, Mapping[str, float]],
) -> MethodRow:
    """Means over seeds, and differences over the seeds that the baseline has too."""
    values = list(losses.values())
    shown = [*(metric for metric in METRICS if metric in values[0]), *runs[0].sources]
    pairs = [(own, base[seed]) for seed, own in losses.items() if seed in base]
    differences = {}
    for loss in shown if pairs else ():
        mean = mean_estimate([own[loss] - other[loss] for own, other in pairs])
        untested = (None, None, None, None, "")
        differences[loss] = Contrast(mean.value, mean.num, mean.interval, *untested)
    spent = [run.cost.seconds for run in runs if run.cost.seconds is not None]
    return MethodRow(
        name=name,
        mixer=runs[0].config.mixer.model_dump(mode="json"),
        seeds=len(losses),
        losses={loss: mean_estimate([own[loss] for own in values]) for loss in shown},
        differences=differences,
        costs={"time, s": f"{sum(spent) / len(spent):.0f}"} if spent else {},
    )


def sweeps(methods: Sequence[MethodRow], option: str) -> dict[str, list[tuple[Any, MethodRow]]]:
    """Methods that differ only in one option of the mixer, with its value, by their other options.

    An option that is not given has its default value.
    """
    groups: dict[tuple[str, str], list[tuple[Any, MethodRow]]] = {}
    for method in methods:
        given = {k: v for k, v in method.mixer.items() if k != "name"}
        name = method.mixer.get("name")
        if name is None or "mean" not in method.losses:
            continue
        try:
            value = build_mixer(name, given).option(option)
        except DographError:  # from another version, or from a package that is not installed
            continue
        if value is not None:
            rest = ", ".join(f"{k}={json.dumps(v)}" for k, v in given.items() if k != option)
            groups.setdefault((name, rest), []).append((value, method))
    return {
        rest: own
        for (_, rest), own in groups.items()
        if len({json.dumps(value, default=str) for value, _ in own}) > 1
    }


def scales_of(comparisons: Sequence[Comparison]) -> list[tuple[str, Points]]:
    """Mean loss by model size, for methods with the same settings at two sizes or more."""
    points: dict[str, dict[int, Estimate]] = {}
    names: dict[str, str] = {}
    for comparison in comparisons:
        for method in comparison.methods:
            if comparison.parameters and "mean" in method.losses:
                settings = json.dumps(method.mixer, sort_keys=True)
                names.setdefault(settings, method.name)
                points.setdefault(settings, {})[comparison.parameters] = method.losses["mean"]
    return [
        (names[settings], sorted(own.items(), key=lambda point: point[0]))
        for settings, own in points.items()
        if len(own) > 1
    ]
