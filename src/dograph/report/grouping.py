"""Runs that differ in their seed alone: their names, and their curves taken together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dograph.config import RunConfig
from dograph.report.content import Band, Group, RunData
from dograph.report.intervals import t_reach
from dograph.report.thinning import Curve, rounded

# What may differ between the runs of a group: it changes no number, or is the seed.
_FREE = ("seed", "run", "log", "checkpoint", "probe")


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
    loose = [k for k, method in enumerate(methods) if method is None]
    names: list[str] = []
    for k, method in enumerate(methods):
        names.append(method[1] if method else _loose_name(k, loose, configs, flat))
    owners: dict[str, set[tuple[str, str] | None]] = {}
    for name, method in zip(names, methods, strict=True):
        owners.setdefault(name, set()).add(method)
    return [
        f"{method[0]}: {method[1]}" if method and len(owners[name]) > 1 else name
        for name, method in zip(names, methods, strict=True)
    ]


def _loose_name(
    k: int, loose: Sequence[int], configs: Sequence[RunConfig], flat: Sequence[Mapping[str, str]]
) -> str:
    own, mixer = flat[k], configs[k].mixer.name
    same = [flat[n] for n in loose if configs[n].mixer.name == mixer]
    keys = sorted({key for other in same for key in {*own, *other} if _differs(own, other, key)})
    told = [f"{key.removeprefix('mixer.')}={own[key]}" for key in keys if key in own]
    return " ".join([mixer, *told])


def _differs(own: Mapping[str, str], other: Mapping[str, str], key: str) -> bool:
    return own.get(key) != other.get(key)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    found.pop("train.device", None)
    return found


def groups_of(runs: Sequence[RunData]) -> list[Group]:
    """Groups in the order of their first run."""
    by_name: dict[str, list[RunData]] = {}
    for run in runs:
        by_name.setdefault(run.group, []).append(run)
    return [
        Group(
            name,
            [run.name for run in own],
            _bands([run.curves.train for run in own]),
            _bands([run.curves.valid for run in own]),
        )
        for name, own in by_name.items()
    ]


def _bands(curves: Sequence[Mapping[str, Curve]]) -> dict[str, Band]:
    names = [name for name in curves[0] if all(name in own for own in curves)]
    return {name: band([own[name] for own in curves]) for name in names}


def band(curves: Sequence[Curve]) -> Band:
    """Mean and 95 % t interval over runs, at the steps that all of them have.

    Where curves are smoothed, it is that of the smoothed ones: the interval is then of the
    running mean.
    """
    lines = [curve.smooth or curve.raw for curve in curves]
    shared = sorted(set.intersection(*(set(line.x) for line in lines)))
    rows = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    value_NX = np.array([[row[x] for x in shared] for row in rows], dtype=np.float64)
    if not shared:
        return Band([], [], None, None)
    mean_X, num = value_NX.mean(axis=0), len(lines)
    if num < 2:
        return Band(shared, rounded(mean_X), None, None)
    reach_X = t_reach(value_NX.std(axis=0, ddof=1), num)
    return Band(shared, rounded(mean_X), rounded(mean_X - reach_X), rounded(mean_X + reach_X))
