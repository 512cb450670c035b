"""Methods beside each other: from compare.json, or from runs that were trained alike."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.config import RunConfig
from dograph.errors import DographError
from dograph.mixers.dograph import DoGraph
from dograph.mixers.dograph_options import DoGraphOptions
from dograph.mixers.registry import build_mixer
from dograph.report.content import Comparison, Difference, Method, RunData, Scale
from dograph.report.grouping import group_names
from dograph.report.intervals import Estimate, of_mean, over_seeds
from dograph.report.reading import COMPARISON
from dograph.report.verdict import claim_of

FIGURES = ("mean", "natural", "worst", "gap")


@dataclass(frozen=True, slots=True)
class Trained:
    """A run with its settings and size."""

    run: RunData
    config: RunConfig
    parameters: int | None


def from_findings(findings: Mapping[str, Any], title: str, parameters: int | None) -> Comparison:
    """What `dograph compare` found."""
    methods = [_found_method(method) for method in findings["methods"] if _is_finite(method)]
    return Comparison(
        title=title,
        baseline=findings["baseline"],
        parameters=parameters,
        command=findings["command"],
        is_planned=True,
        claim=claim_of(findings["baseline"], methods, is_planned=True),
        methods=methods,
        notes=list(findings["notes"]),
        num_domains=num_domains_of(methods),
        objectives=objectives_of(methods),
    )


def _is_finite(method: Mapping[str, Any]) -> bool:
    """What failed, or is not a number, is told in the notes."""
    means = [told["mean"] for told in method.get("sources", {}).values()]
    return bool(means) and None not in means


def _is_told(difference: Mapping[str, Any]) -> bool:
    return bool(difference["seeds"]) and difference["mean"] is not None


def _found_method(method: Mapping[str, Any]) -> Method:
    told = dict(method.get("differences", {}))
    by_source = told.pop("sources", {})
    seconds, flops = method["seconds"], method["flops"]
    most = method["most_epochs"]
    return Method(
        name=method["label"],
        mixer=dict(method["mixer"]),
        seeds=method["losses"]["mean"]["seeds"],
        losses={name: _spread(value) for name, value in method["losses"].items()},
        sources={name: _spread(value) for name, value in method["sources"].items()},
        differences={name: _difference(value) for name, value in told.items() if _is_told(value)},
        source_differences={
            name: _difference(value) for name, value in by_source.items() if _is_told(value)
        },
        costs=[
            ("FLOPs, plan counted", f"{flops['total']:.3g}"),
            ("plan, of the FLOPs", f"{flops['plan'] / flops['total']:.0%}"),
            ("time, s", f"{seconds['total']:.0f}"),
            ("memory, GiB", f"{method['peak_bytes'] / 2**30:.2f}"),
            ("most repeated source", f"{most['source']} {most['epochs']:.2f} x"),
        ],
    )


def _spread(told: Mapping[str, Any]) -> Estimate:
    return of_mean(told["mean"], told["deviation"], told["seeds"])


def _difference(told: Mapping[str, Any]) -> Difference:
    def pair(mean: float, interval: Mapping[str, float] | None) -> Estimate:
        return Estimate(mean) if interval is None else Estimate(mean, **interval)

    return Difference(
        value=pair(told["mean"], told["interval"]),
        text=pair(told["mean"], told["over_items"]) if told["over_items"] else None,
        p=told["p_holm"],
        claim=told["claim"],
    )


def from_runs(trained: Sequence[Trained]) -> list[Comparison]:
    """Runs that were not made by a comparison, where two methods or more were trained alike."""
    alike: dict[str, list[Trained]] = {}
    for one in trained:
        if one.run.steps >= one.run.total_steps and one.run.losses:
            alike.setdefault(_setting(one.config), []).append(one)
    found = []
    for runs in alike.values():
        groups: dict[str, list[Trained]] = {}
        for one in runs:
            groups.setdefault(one.run.group, []).append(one)
        if len(groups) > 1:
            # Here their names need to tell methods apart, and no more.
            configs = [own[0].config for own in groups.values()]
            names = group_names(configs, [None] * len(configs))
            found.append(_loose(dict(zip(names, groups.values(), strict=True))))
    return found


def _setting(config: RunConfig) -> str:
    """What has to be equal for a difference to be the method's."""
    values = config.model_dump(mode="json")
    parts = {name: values[name] for name in ("data", "model", "optim", "eval")}
    train = {k: values["train"][k] for k in ("steps", "batch_size", "dtype")}
    return json.dumps([parts, train], sort_keys=True)


def _loose(groups: Mapping[str, list[Trained]]) -> Comparison:
    mixers = {name: own[0].config.mixer for name, own in groups.items()}
    natural = [name for name, m in mixers.items() if m.name == "natural" and not m.options]
    baseline = natural[0] if natural else next(iter(groups))
    base = {one.run.seed: _figures(one.run) for one in groups[baseline]}
    methods = [_loose_method(name, own, base, name == baseline) for name, own in groups.items()]
    methods.sort(key=lambda method: method.name != baseline)
    first = next(iter(groups.values()))[0]
    return Comparison(
        title=f"{first.config.model.preset or first.config.model.path}, {first.run.steps:,} steps",
        baseline=baseline,
        parameters=first.parameters,
        command=None,
        is_planned=False,
        claim=claim_of(baseline, methods, is_planned=False),
        methods=methods,
        notes=[
            f"differences are to {baseline}, seed by seed where both have the seed; intervals are "
            "95 % t intervals over seeds. No claim is made of runs picked by hand: dograph compare"
        ],
        num_domains=num_domains_of(methods),
        objectives=objectives_of(methods),
    )


def _figures(run: RunData) -> dict[str, float]:
    """Losses by source, and the four figures."""
    values = {loss.name: loss.nats.value for loss in run.losses}
    sources = [loss.nats.value for loss in run.losses if not loss.is_summary]
    return values | {"gap": max(sources) - min(sources)}


def _loose_method(
    name: str, own: list[Trained], base: Mapping[int, Mapping[str, float]], is_baseline: bool
) -> Method:
    by_seed = {one.run.seed: _figures(one.run) for one in own}
    sources = [loss.name for loss in own[0].run.losses if not loss.is_summary]

    def level(figure: str) -> Estimate:
        return over_seeds([values[figure] for values in by_seed.values()])

    def differences(figures: Sequence[str]) -> dict[str, Difference]:
        shared = [seed for seed in by_seed if seed in base]
        if is_baseline or not shared:
            return {}
        return {
            figure: Difference(
                value=over_seeds([by_seed[seed][figure] - base[seed][figure] for seed in shared])
            )
            for figure in figures
        }

    figures = [figure for figure in FIGURES if figure in next(iter(by_seed.values()))]
    spent = [one.run.cost.seconds for one in own if one.run.cost.seconds is not None]
    return Method(
        name=name,
        mixer=own[0].config.mixer.model_dump(mode="json"),
        seeds=len(by_seed),
        losses={figure: level(figure) for figure in figures},
        sources={source: level(source) for source in sources},
        differences=differences(figures),
        source_differences=differences(sources),
        costs=[("time, s", f"{sum(spent) / len(spent):.0f}")] if spent else [],
    )


def num_domains_of(methods: Sequence[Method]) -> list[tuple[str, list[tuple[int, Estimate]]]]:
    """Mean loss by number of domains, for methods that differ in nothing else."""
    found = []
    for rest, own in _families(methods, "num_domains").items():
        points = [(options.num_domains, method.losses["mean"]) for options, method in own]
        if len({num for num, _ in points}) > 1:
            found.append((rest, sorted(points, key=lambda point: point[0])))
    return found


def objectives_of(methods: Sequence[Method]) -> list[tuple[str, str]]:
    """Objective and method, for methods that differ in their objective alone."""
    found = []
    for own in _families(methods, "objective").values():
        pairs = [(_objective(options), method.name) for options, method in own]
        found += pairs if len({objective for objective, _ in pairs}) > 1 else []
    return found


def _objective(options: DoGraphOptions) -> str:
    given = options.objective
    return given if isinstance(given, str) else json.dumps(given, default=str)


def _families(
    methods: Sequence[Method], option: str
) -> dict[str, list[tuple[DoGraphOptions, Method]]]:
    """Methods of DoGraph, with all their options, by what else was set than one of them."""
    found: dict[str, list[tuple[DoGraphOptions, Method]]] = {}
    for method in methods:
        given = {k: v for k, v in method.mixer.items() if k != "name"}
        if method.mixer.get("name") != "dograph" or "mean" not in method.losses:
            continue
        try:
            mixer = build_mixer("dograph", given)
        except DographError:  # of another version
            continue
        assert isinstance(mixer, DoGraph)
        rest = ", ".join(f"{k}={json.dumps(v)}" for k, v in given.items() if k != option)
        found.setdefault(rest, []).append((mixer.options, method))
    return found


def scales_of(comparisons: Sequence[Comparison]) -> list[Scale]:
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
        Scale(names[settings], sorted(own.items(), key=lambda point: point[0]))
        for settings, own in points.items()
        if len(own) > 1
    ]


def read_findings(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
    return found
