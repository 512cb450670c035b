"""Cells: one run per method and seed, paired by seed; and the plans that some methods need.

Runs with the same seed have the same initial weights, the same shuffle of every source and the
same dropout; two methods with the same mixture see the same samples in the same order.

OUT/plans/<method>.yaml      the mixture of a method that needs proxies, with provenance
OUT/plans/<method>.json      its cost, written last: with it, the plan is complete
One plan is used for all seeds; with one plan per seed, files are named <method>-s<seed>.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dograph.compare.arms import Ask, ComparedMethod, stretched
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import DographError
from dograph.files import write_json
from dograph.mixtures.file import read_mixture_file, write_mixture
from dograph.plan.jobs import Stopped
from dograph.plan.lab import PlanCost, make_plan
from dograph.plan.pool import Pool
from dograph.records import read_record
from dograph.train.distributed import pick_device
from dograph.train.forecast import step_flops

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Planned:
    file: Path
    weights: dict[str, float]
    flops: float
    seconds: float  # training time of its proxies, one after another
    proxies: int
    seed: int | None  # None: one plan for all seeds
    findings: dict[str, Any]

    @property
    def surrogate(self) -> str | None:
        """The function from mixtures to losses that the plan was fitted with, if any."""
        name: str | None = self.findings.get("surrogate", {}).get("name")
        return name


# By method and seed (None: all seeds); a text says why a plan failed.
Plans = dict[tuple[str, int | None], Planned | str]


def make_plans(ask: Ask, pool: Pool, say: Say) -> Plans:
    """Every plan that a method needs. One that fails is reported, and the others are made."""
    plans: Plans = {}
    seeds: list[int | None] = [*ask.seeds] if ask.replan else [None]
    for method, seed in ((m, seed) for m in ask.methods if m.is_planned for seed in seeds):
        try:
            plan = plans[method.label, seed] = _plan(ask, method, seed, pool, say)
            for word, kind in (("note", "notes"), ("advice", "advice")):
                for text in plan.findings.get(kind, []):
                    say(f"{plan.file.stem}: {word}: {text}")
        except Stopped:
            raise
        except DographError as error:
            why = plans[method.label, seed] = f"its plan failed: {error}"
            say(f"{method.label}: {why}")
    return plans


def _plan(ask: Ask, method: ComparedMethod, seed: int | None, pool: Pool, say: Say) -> Planned:
    """Read the plan from disk, or make it first."""
    stem = method.label if seed is None else f"{method.label}-s{seed}"
    file = (ask.out / "plans" / f"{stem}.yaml").resolve()
    cost_file = file.with_suffix(".json")
    cost = read_record(cost_file, TypeAdapter(PlanCost).validate_python)
    if cost is None:  # or damaged: proxies are kept by content, so another plan costs little
        assert ask.proxy is not None
        say(f"plan of {stem}:")
        if seed is not None:
            method = replace(method, mixer={**method.mixer, "seed": seed})
        target = method.config(ask.config)
        plan = make_plan(target, ask.proxy, lab=ask.lab, pool=pool, command=ask.command)
        write_mixture(file, plan)
        write_json(cost_file, asdict(plan.cost))
        cost = plan.cost
    mixture = read_mixture_file(file)
    spent = (cost.flops, cost.seconds, cost.proxies)
    return Planned(file, dict(mixture.weights), *spent, seed, mixture.findings)


def equal_compute(prices: Mapping[str, tuple[float, float]], steps: int) -> dict[str, int]:
    """Steps of each run if all may spend what the most expensive one spends at `steps`.

    Every other run takes as many whole steps as its own plan and step cost leave room for.
    `prices`: FLOPs of a run's plan (0: it needs none) and of each of its steps.
    """
    total = max((plan + steps * step for plan, step in prices.values()), default=0.0)
    # 1e-9 of a step is rounding error, and must not cost the most expensive run a step.
    return {
        key: max(int((total - plan) / step + 1e-9), steps) for key, (plan, step) in prices.items()
    }


@dataclass(frozen=True, slots=True)
class Cell:
    """A run to train, or one that cannot be trained because its plan failed."""

    method: str
    seed: int
    config: RunConfig
    step_flops: float
    plan: Planned | None = None
    problem: str | None = None

    @property
    def label(self) -> str:
        return f"{self.method}-s{self.seed}"

    @property
    def flops(self) -> float:
        """Of training, without the plan."""
        return self.config.train.steps * self.step_flops

    @property
    def plan_flops(self) -> float:
        return self.plan.flops if self.plan else 0.0

    @property
    def command(self) -> str:
        """Trains this run again in another folder, bit for bit on the same device."""
        config = Path(self.config.run) / "config.yaml"
        run = f"dograph train {shlex.quote(str(config))} run=ELSEWHERE"
        # A cell runs with one thread; more threads would add up sums in another order.
        on_cpu = pick_device(self.config.train.device).type == "cpu"
        return f"OMP_NUM_THREADS=1 {run}" if on_cpu else run


def lay_out(ask: Ask, corpus: Corpus, plans: Plans) -> list[Cell]:
    """All cells, seed by seed, so that pairs are complete early."""
    config_of = {method.label: method.config(ask.config) for method in ask.methods}
    step_of = {label: step_flops(config, corpus) for label, config in config_of.items()}
    cells = []
    for seed, (label, config) in product(ask.seeds, config_of.items()):
        plan = plans.get((label, seed), plans.get((label, None)))
        run = (ask.out / "cells" / f"{label}-s{seed}").resolve()
        changes: dict[str, Any] = {"seed": seed, "run": str(run)}
        made, problem = (None, plan) if isinstance(plan, str) else (plan, None)
        if made is not None:
            static = {"name": "static", "file": str(made.file)}
            changes["mixer"] = config.mixer.model_validate(static)
        config = config.model_copy(update=changes)
        cells.append(Cell(label, seed, config, step_of[label], made, problem))
    if ask.budget == "compute":
        able = {own.label: (own.plan_flops, own.step_flops) for own in cells if not own.problem}
        steps = equal_compute(able, ask.config.train.steps)
        for number, cell in enumerate(cells):
            if cell.label in steps:
                config = stretched(cell.config, steps[cell.label])
                cells[number] = replace(cell, config=config)
    return cells
