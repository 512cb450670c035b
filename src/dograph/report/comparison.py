"""Methods beside each other: from compare.json, or from runs that were trained alike."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.compare.findings import Contrast, Findings, MethodFindings, Spread
from dograph.config import RunConfig
from dograph.errors import DographError
from dograph.mixers.registry import build_mixer
from dograph.report.one_run import RunData
from dograph.stats import METRICS, Estimate, mean_estimate, t_interval

# What may differ between the runs of a group: it changes no number, or is the seed.
_FREE = ("seed", "run", "log", "checkpoint", "probe")
Points = list[tuple[int, Estimate]]  # mean loss by a size


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A row of a comparison."""

    name: str
    mixer: dict[str, Any]
    seeds: int
    losses: dict[str, Estimate]  # mean, natural, worst, gap
    sources: dict[str, Estimate]
    differences: dict[str, Contrast]  # to the baseline's losses, below 0 is better
    source_differences: dict[str, Contrast]
    costs: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods trained alike."""

    title: str
    baseline: str
    parameters: int | None
    command: str | None  # that makes all of it
    is_planned: bool  # made by dograph compare, so that claims are corrected
    methods: list[MethodRow]
    notes: list[str]

    @property
    def claim(self) -> str:
        """What may be said of the methods, and what may not."""
        return claim_of(self.baseline, self.methods, is_planned=self.is_planned)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folder's name, with as much of its path before it as tells runs apart."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({n})" for n, name in enumerate(names, start=1)]  # a run given twice


def group_names(
    configs: Sequence[RunConfig], methods: Sequence[tuple[str, str] | None]
) -> list[str]:
    """Runs that differ in their seed alone get one name, and no others the same.

    `methods` are the comparison and the label there, for runs of one: the label is their name,
    with the comparison's before it where somebody else has it too. Others are called by their
    mixer and whatever tells it from others of that name.
    """
    flat = [_flat(config.model_dump(mode="json", exclude=set(_FREE))) for config in configs]
    names: list[str] = []
    for own, config, method in zip(flat, configs, methods, strict=True):
        if method is not None:
            names.append(method[1])
            continue
        mixer = config.mixer.name
        same = [
            other
            for other, its, of in zip(flat, configs, methods, strict=True)
            if of is None and its.mixer.name == mixer
        ]
        keys = {key for other in same for key in {*own, *other} if own.get(key) != other.get(key)}
        told = [f"{key.removeprefix('mixer.')}={own[key]}" for key in sorted(keys) if key in own]
        names.append(" ".join([mixer, *told]))
    owners: dict[str, set[tuple[str, str] | None]] = {}
    for name, method in zip(names, methods, strict=True):
        owners.setdefault(name, set()).add(method)
    return [
        f"{method[0]}: {method[1]}" if method and len(owners[name]) > 1 else name
        for name, method in zip(names, methods, strict=True)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their dotted names, as they are typed."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "train.device":
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def verdict_of(runs: Sequence[RunData], comparisons: Sequence[Comparison]) -> str:
    """What came out in a sentence or two: the first comparison's outcome, or the run's."""
    if comparisons:
        return comparisons[0].claim
    if not runs:
        return "There are no runs to speak of."
    if len(runs) == 1:
        return _single_verdict(runs[0])
    losses = {run.name: run.mean_loss for run in runs if run.mean_loss is not None}
    if not losses:
        return f"{len(runs)} runs, none of them validated yet."
    unfinished = sum(not run.is_complete for run in runs)
    if len(losses) == len(runs) and not unfinished and len({run.group for run in runs}) == 1:
        mean = mean_estimate([nats.value for nats in losses.values()]).text(".4f", " ")
        seeds = f"{len(runs)} seeds of {runs[0].group}"
        return f"{seeds}: mean validation loss {mean} nats, 95 % over seeds."
    best = min(losses, key=lambda name: losses[name].value)
    why = f"{unfinished} not complete" if unfinished else "They were not trained alike"
    return (
        f"{len(runs)} runs; the lowest mean validation loss is {best}'s, "
        f"{losses[best].text('.4f', ' ')} nats. {why}, so no claim is made."
    )


def _single_verdict(run: RunData) -> str:
    how_far = f"Complete after {run.steps:,} steps"
    if not run.is_complete:
        how_far = f"{run.steps:,} of {run.config.train.steps:,} steps made"
    level, nmi = run.mean_loss, run.health.get("domains/nmi")
    loss = level and f"mean validation loss {level.text('.4f', ' ')} nats"
    parts = [f"{how_far}: {loss or 'no validation loss yet'}"]
    if nmi is not None:
        parts.append(f"agreement of domains with sources {nmi.raw.y[-1]:.2f} (NMI, at most 1)")
    if count := len(run.warnings):
        parts.append(f"{count} warning{'s' if count > 1 else ''}")
    return "; ".join(parts) + "."


def claim_of(baseline: str, methods: Sequence[MethodRow], *, is_planned: bool) -> str:
    """Which methods are lower than the baseline, which higher, and of which nothing is claimed."""

    def difference(method: MethodRow) -> float:
        return method.differences["mean"].mean

    def figures(method: MethodRow) -> str:
        nats = method.differences["mean"].estimate.text("+.4f", " ")
        return f"{nats} nats to {baseline}, {method.seeds} seed{'s' if method.seeds > 1 else ''}"

    def names(own: Sequence[MethodRow]) -> str:
        return ", ".join(method.name for method in own)

    others = [method for method in methods if "mean" in method.differences]
    if not others:
        return f"No method could be set beside {baseline}."
    best = min(others, key=difference)
    lead = f"No mean loss is below {baseline}'s; the nearest is {best.name}'s"
    if difference(best) < 0:
        lead = f"The lowest mean loss is {best.name}'s"
    level = f"{lead}: {figures(best)}."
    if not is_planned:
        return f"{level} Runs picked by hand: no claim."
    by_claim: dict[str, list[MethodRow]] = {}
    for method in others:
        by_claim.setdefault(method.differences["mean"].claim or "no claim", []).append(method)
    lower, higher = by_claim.pop("lower", []), by_claim.pop("higher", [])
    told = []
    for word, own, most in (("Lower", lower, min), ("Higher", higher, max)):
        if own:
            top = most(own, key=difference)
            told.append(f"{word} than {baseline} in mean loss: {names(own)}.")
            told.append(f"Most so {top.name}: {figures(top)}.")
    is_all = not told and len(by_claim) == 1  # methods are named where there are others
    for claim, own in by_claim.items():
        if claim == "unclear":
            told.append("No difference is shown" + ("." if is_all else f" for {names(own)}."))
            continue
        reason = claim.removeprefix("no claim").removeprefix(": ")
        lead = "Nothing is claimed" if is_all else f"Nothing is claimed of {names(own)}"
        told.append(f"{lead}: {reason}." if reason else f"{lead}.")
    return " ".join(told if lower else [*told, level])


def from_findings(findings: Findings, title: str, parameters: int | None) -> Comparison:
    """What `dograph compare` found; what failed, or is not a number, is told in the notes."""
    methods = []
    for method in findings.methods:
        means = [spread.mean for spread in method.sources.values()]
        if means and all(map(math.isfinite, means)):
            methods.append(_found_method(method))
    return Comparison(
        title=title,
        baseline=findings.baseline,
        parameters=parameters,
        command=findings.command,
        is_planned=True,
        methods=methods,
        notes=list(findings.notes),
    )


def _found_method(method: MethodFindings) -> MethodRow:
    assert method.seconds is not None
    assert method.most_epochs is not None
    flops, most, told = method.flops, method.most_epochs, method.differences
    return MethodRow(
        name=method.label,
        mixer=dict(method.mixer),
        seeds=method.losses["mean"].seeds,
        losses={name: spread_estimate(value) for name, value in method.losses.items()},
        sources={name: spread_estimate(value) for name, value in method.sources.items()},
        differences=_known({name: told[name] for name in METRICS} if told else {}),
        source_differences=_known(told.sources if told else {}),
        costs=[
            ("FLOPs, plan counted", f"{flops.total:.3g}"),
            ("plan, of the FLOPs", f"{flops.plan / flops.total:.0%}"),
            ("time, s", f"{method.seconds.total:.0f}"),
            ("memory, GiB", f"{(method.peak_bytes or 0) / 2**30:.2f}"),
            ("most repeated source", f"{most.source} {most.epochs:.2f} x"),
        ],
    )


def _known(told: Mapping[str, Contrast]) -> dict[str, Contrast]:
    """Those that some seed gave a number for."""
    return {name: own for name, own in told.items() if own.seeds and math.isfinite(own.mean)}


def spread_estimate(told: Spread) -> Estimate:
    """A mean over seeds with its t interval; that of a single one has none."""
    if told.deviation is None or told.seeds < 2 or not math.isfinite(told.deviation):
        return Estimate(told.mean)
    error = told.deviation / math.sqrt(told.seeds)
    return Estimate(told.mean, t_interval(told.mean, error, told.seeds - 1))


def from_runs(runs: Sequence[RunData]) -> list[Comparison]:
    """Runs that were not made by a comparison, where two methods or more were trained alike."""
    alike: dict[str, dict[str, list[RunData]]] = {}
    for run in runs:
        if run.label is None and run.is_complete and run.losses:
            # What has to be equal for a difference to be the method's.
            values = run.config.model_dump(mode="json")
            parts = {name: values[name] for name in ("data", "model", "optim", "eval")}
            train = {k: values["train"][k] for k in ("steps", "batch_size", "dtype")}
            same = alike.setdefault(json.dumps([parts, train], sort_keys=True), {})
            same.setdefault(run.group, []).append(run)
    return [_loose(list(groups.values())) for groups in alike.values() if len(groups) > 1]


def _loose(groups: Sequence[list[RunData]]) -> Comparison:
    """Methods that were not planned as a comparison; the plain one is the baseline."""
    configs = [own[0].config for own in groups]
    names = group_names(configs, [None] * len(groups))  # that tell them apart, and no more
    natural = [
        k for k, c in enumerate(configs) if (c.mixer.name, c.mixer.options) == ("natural", {})
    ]
    at = natural[0] if natural else 0
    base = {run.config.seed: _figures(run) for run in groups[at]}
    methods = [
        _loose_method(name, own, base if k != at else {})
        for k, (name, own) in enumerate(zip(names, groups, strict=True))
    ]
    model, first = configs[0].model, groups[0][0]
    return Comparison(
        title=f"{model.preset or model.path}, {first.steps:,} steps",
        baseline=names[at],
        parameters=first.parameters,
        command=None,
        is_planned=False,
        methods=[methods.pop(at), *methods],
        notes=[
            f"differences are to {names[at]}, seed by seed where both have the seed; intervals are "
            "95 % t intervals over seeds. No claim is made of runs picked by hand: dograph compare"
        ],
    )


def _figures(run: RunData) -> dict[str, float]:
    """Losses by source, and the four figures."""
    values = {loss.name: loss.nats.value for loss in run.losses}
    sources = [loss.nats.value for loss in run.losses if not loss.is_summary]
    return values | {"gap": max(sources) - min(sources)}


def _loose_method(
    name: str, own: list[RunData], base: Mapping[int, Mapping[str, float]]
) -> MethodRow:
    by_seed = {run.config.seed: _figures(run) for run in own}
    pairs = [(values, base[seed]) for seed, values in by_seed.items() if seed in base]
    sources = [loss.name for loss in own[0].losses if not loss.is_summary]
    figures = [figure for figure in METRICS if figure in next(iter(by_seed.values()))]

    def levels(names: list[str]) -> dict[str, Estimate]:
        return {x: mean_estimate([values[x] for values in by_seed.values()]) for x in names}

    def differences(names: list[str]) -> dict[str, Contrast]:
        found = {x: mean_estimate([one[x] - other[x] for one, other in pairs]) for x in names}
        return {
            x: Contrast(e.value, e.num, e.interval, None, None, None, None, "")
            for x, e in found.items()
            if pairs
        }

    spent = [run.cost.seconds for run in own if run.cost.seconds is not None]
    return MethodRow(
        name=name,
        mixer=own[0].config.mixer.model_dump(mode="json"),
        seeds=len(by_seed),
        losses=levels(figures),
        sources=levels(sources),
        differences=differences(figures),
        source_differences=differences(sources),
        costs=[("time, s", f"{sum(spent) / len(spent):.0f}")] if spent else [],
    )


def num_domains_of(methods: Sequence[MethodRow]) -> list[tuple[str, Points]]:
    """Mean loss by number of domains, for methods that differ in nothing else, by what they set."""
    found = []
    for rest, own in _families(methods, "num_domains").items():
        points = [(num, method.losses["mean"]) for num, method in own]
        if len({num for num, _ in points}) > 1:
            found.append((rest, sorted(points, key=lambda point: point[0])))
    return found


def objectives_of(methods: Sequence[MethodRow]) -> list[tuple[str, str]]:
    """Objective and method, for methods that differ in their objective alone."""
    found = []
    for own in _families(methods, "objective").values():
        pairs = [
            (given if isinstance(given, str) else json.dumps(given, default=str), method.name)
            for given, method in own
        ]
        found += pairs if len({objective for objective, _ in pairs}) > 1 else []
    return found


def _families(methods: Sequence[MethodRow], option: str) -> dict[str, list[tuple[Any, MethodRow]]]:
    """An option's value, default or given, and the method, by what else the method sets."""
    found: dict[tuple[str, str], list[tuple[Any, MethodRow]]] = {}
    for method in methods:
        given = {k: v for k, v in method.mixer.items() if k != "name"}
        name = method.mixer.get("name")
        if name is None or "mean" not in method.losses:
            continue
        try:
            value = build_mixer(name, given).option(option)
        except DographError:  # of another version, or not at hand
            continue
        if value is not None:
            rest = ", ".join(f"{k}={json.dumps(v)}" for k, v in given.items() if k != option)
            found.setdefault((name, rest), []).append((value, method))
    return {rest: own for (_, rest), own in found.items()}


def scales_of(comparisons: Sequence[Comparison]) -> list[tuple[str, Points]]:
    """Mean loss by size, for methods with the same settings at two sizes or more."""
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
