"""Cells: one run for each method and seed, paired by seed.

With the same seed, runs have the same first weights, the same shuffles of every source and the
same dropout; where two methods draw the same mixture they see the same samples in the same order.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask, ComparedMethod
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import DographError
from dograph.files import write_json
from dograph.mixtures.file import MixtureFile, read_mixture_file, write_mixture
from dograph.plan.jobs import Job, Stopped
from dograph.plan.lab import make_plan
from dograph.plan.pool import Pool
from dograph.train.distributed import pick_device
from dograph.train.forecast import step_flops

# Plans of the methods that need proxies: one for all seeds, or one for each.
#
# OUT/plans/<method>.yaml      the mixture, with provenance
# OUT/plans/<method>.json      what it cost; with it, the plan is complete
# With a plan for each seed, <method>-s<seed>.

Say = Callable[[str], None]
CellKey = tuple[str, int]  # method and seed
PlanKey = tuple[str, int | None]  # method, and seed where each has its own plan


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that was made."""

    file: Path
    weights: dict[str, float]
    flops: float
    seconds: float  # of its proxies' training, one after another
    proxies: int
    seed: int | None  # of the plan, where there is one for each seed
    findings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plans:
    """What was planned, and what could not be."""

    made: dict[PlanKey, Planned]
    failed: dict[PlanKey, str]

    def key(self, label: str, seed: int) -> PlanKey:
        return (label, seed) if (label, seed) in {*self.made, *self.failed} else (label, None)


def make_plans(ask: Ask, pool: Pool, say: Say) -> Plans:
    """Every plan that a method needs. One that fails is told, and the others are made."""
    made: dict[PlanKey, Planned] = {}
    failed: dict[PlanKey, str] = {}
    for method in ask.methods:
        if not method.is_planned:
            continue
        for seed in ask.seeds if ask.replan else [None]:
            key = (method.label, seed)
            try:
                made[key] = _plan(ask, method, seed, pool, say)
                for word, kind in (("note", "notes"), ("advice", "advice")):
                    for text in made[key].findings.get(kind, []):
                        say(f"{made[key].file.stem}: {word}: {text}")
            except Stopped:
                raise
            except DographError as error:
                failed[key] = f"its plan failed: {error}"
                say(f"{method.label}: {failed[key]}")
    return Plans(made, failed)


def _plan(ask: Ask, method: ComparedMethod, seed: int | None, pool: Pool, say: Say) -> Planned:
    stem = method.label if seed is None else f"{method.label}-s{seed}"
    file = (ask.out / "plans" / f"{stem}.yaml").resolve()
    cost = file.with_suffix(".json")
    if not cost.is_file():
        own = (
            ComparedMethod(method.label, {**method.mixer, "seed": seed})
            if seed is not None
            else method
        )
        target = own.config(ask.config)
        assert ask.proxy is not None
        say(f"plan of {stem}:")
        plan = make_plan(target, ask.proxy, lab=ask.lab, pool=pool, command=ask.command)
        found = MixtureFile(
            weights=dict(plan.mixture.weights), provenance=plan.provenance, findings=plan.findings
        )
        write_mixture(file, found)
        write_json(cost, asdict(plan.cost))
    spent, mixture = json.loads(cost.read_text(encoding="utf-8")), read_mixture_file(file)
    return Planned(
        file=file,
        weights=dict(mixture.weights),
        flops=spent["flops"],
        seconds=spent["seconds"],
        proxies=spent["proxies"],
        seed=seed,
        findings=mixture.findings,
    )


# What a method may spend: the same tokens, or the same FLOPs with plans and sketches counted.
#
# Equal compute: the dearest run at train.steps sets the total, plan + steps x step; every other run
# takes as many whole steps as its own plan and step leave room for. The learning-rate schedule is
# stretched to them: warm-up keeps its share of the run, and the decay ends at the last step.


@dataclass(frozen=True, slots=True)
class Price:
    """FLOPs of a run's plan (0: none is needed) and of each of its steps."""

    plan: float
    step: float

    def total(self, steps: int) -> float:
        return self.plan + steps * self.step


def equal_compute(prices: Mapping[CellKey, Price], steps: int) -> dict[CellKey, int]:
    """Steps of each run under the total of the dearest one at `steps`."""
    total = max((price.total(steps) for price in prices.values()), default=0.0)
    # A part in 1e9 of a step is rounding, and must not cost the dearest run a step.
    return {
        key: max(int((total - price.plan) / price.step + 1e-9), steps)
        for key, price in prices.items()
    }


def stretched(config: RunConfig, steps: int) -> RunConfig:
    """The same run over another number of steps, its warm-up as large a part of them."""
    if steps == config.train.steps:
        return config
    train = config.train.model_copy(update={"steps": steps})
    optim = config.optim.model_copy(update={"warmup_steps": config.warmup_over(steps)})
    return config.model_copy(update={"train": train, "optim": optim})


@dataclass(frozen=True, slots=True)
class Cell:
    """A run to be made, or one that cannot be: its plan failed."""

    method: str
    seed: int
    config: RunConfig
    price: Price
    problem: str | None = None

    @property
    def label(self) -> str:
        return f"{self.method}-s{self.seed}"

    @property
    def job(self) -> Job:
        return Job(self.label, self.config)

    @property
    def flops(self) -> float:
        """Of training alone."""
        return self.config.train.steps * self.price.step

    @property
    def command(self) -> str:
        """What makes this run again, bit for bit on the same device, elsewhere."""
        config = Path(self.config.run) / "config.yaml"
        run = f"dograph train {shlex.quote(str(config))} run=ELSEWHERE"
        # A cell computes with one thread, whose sums are added up in another order than many's.
        return (
            f"OMP_NUM_THREADS=1 {run}"
            if pick_device(self.config.train.device).type == "cpu"
            else run
        )


def lay_out(ask: Ask, corpus: Corpus, plans: Plans) -> list[Cell]:
    """All cells, seed by seed, so that pairs are complete early."""
    config_of = {method.label: method.config(ask.config) for method in ask.methods}
    step_of = {label: step_flops(config, corpus) for label, config in config_of.items()}
    prices: dict[CellKey, Price] = {}
    for seed in ask.seeds:
        for label, flops in step_of.items():
            plan = plans.made.get(plans.key(label, seed))
            prices[label, seed] = Price(0.0 if plan is None else plan.flops, flops)
    steps = dict.fromkeys(prices, ask.config.train.steps)
    if ask.budget == "compute":
        able = {k: price for k, price in prices.items() if plans.key(*k) not in plans.failed}
        steps |= equal_compute(able, ask.config.train.steps)
    cells = []
    for (label, seed), price in prices.items():
        key = plans.key(label, seed)
        config = stretched(config_of[label], steps[label, seed])
        if key in plans.made:
            static = {"name": "static", "file": str(plans.made[key].file)}
            mixer = config.mixer.model_validate(static)
            config = config.model_copy(update={"mixer": mixer})
        run = (ask.out / "cells" / f"{label}-s{seed}").resolve()
        config = config.model_copy(update={"seed": seed, "run": str(run)})
        cells.append(Cell(label, seed, config, price, plans.failed.get(key)))
    return cells
