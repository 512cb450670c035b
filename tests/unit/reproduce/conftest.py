"""Findings made by hand, so that what a table says of them is known beforehand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dograph.compare.findings import Findings
from dograph.reproduce.artefacts import Wanted, build_asks, find_artefact
from dograph.reproduce.verdicts import Study

SEEDS = (10, 11, 12, 13, 14)
NOISE = (-0.02, -0.01, 0.0, 0.01, 0.02)  # of a seed, the same for every method


def cell(method, seed, losses, *, seconds=10.0, plan=0.0, flops=100.0):
    mean = sum(losses.values()) / len(losses)
    worst = max(losses.values())
    return {
        "label": f"{method}-s{seed}",
        "method": method,
        "seed": seed,
        "run": f"cells/{method}-s{seed}",
        "command": "dograph train",
        "steps": 700,
        "tokens": 700,
        "error": None,
        "losses": losses,
        "summaries": {
            "mean": mean,
            "natural": mean,
            "worst": worst,
            "gap": worst - min(losses.values()),
        },
        "seconds": {"train": seconds, "plan": plan, "total": seconds + plan},
        "flops": {"train": flops, "plan": plan, "total": flops + plan},
    }


TEXT = {"low": -0.5, "high": 0.5}  # the interval over validation text of every difference
CONTRAST = {
    "mean": 0.0,
    "seeds": 5,
    "interval": None,
    "simultaneous": None,
    "p": None,
    "p_holm": None,
    "over_items": TEXT,
    "claim": "unclear",
}


def findings(cells, baseline="uniform", config=None):
    labels = list(dict.fromkeys(one["method"] for one in cells))
    labels = [baseline, *(label for label in labels if label != baseline)]
    methods = [
        {
            "label": label,
            "mixer": {},
            "cells": [],
            "failed": [],
            "plans": [],
            "one_plan_for_all_seeds": False,
            "steps": [700],
            "tokens": [700],
            "flops": next(one["flops"] for one in cells if one["method"] == label),
            "differences": dict.fromkeys(("mean", "natural", "worst", "gap"), CONTRAST)
            | {"sources": {}},
        }
        for label in labels
    ]
    return Findings.of_json(
        {
            "format": "dograph-compare",
            "version": 1,
            "command": None,
            "budget": "tokens",
            "baseline": baseline,
            "replan": False,
            "environment": {},
            "methods": methods,
            "cells": cells,
            "seeds": list(SEEDS),
            "config": config or {},
            "proxy": None,
            "corpus": {"folder": "data/x", "digest": "0", "tokens": {"a": 600, "b": 400}},
            "failures": {},
            "notes": ["a plain note", "warning: b was read through 5.0 times"],
        }
    )


def study(name, made, scores=None, size="", **wanted):
    """`made` as if it had been trained for the artefact (at one of its model sizes)."""
    if size:
        wanted["settings"] = (f"model.preset={size}",)
    ask = build_asks(Wanted(artefact=find_artefact(name), **wanted))[size]
    found = replace(made, config=ask.config.model_dump(mode="json"))
    scored = {label: dict(score) for label, score in (scores or {}).items()}
    return Study(find_artefact(name), "mini", ask, found, scored)


def levels(means, seeds=SEEDS, **more):
    """Cells of every method at its mean: a little above it in one source, below in the other."""
    return [
        cell(
            method,
            seed,
            {"a": mean + 0.5 + NOISE[index], "b": mean - 0.5 + NOISE[index] + 1e-4 * index},
            **{name: values[method] for name, values in more.items()},
        )
        for index, seed in enumerate(seeds)
        for method, mean in means.items()
    ]


@pytest.fixture
def by_hand():
    return SimpleNamespace(
        SEEDS=SEEDS, cell=cell, findings=findings, study=study, levels=levels, NOISE=NOISE
    )
