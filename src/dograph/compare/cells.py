"""Cells: one run for each method and seed, paired by seed.

With the same seed, runs have the same first weights, the same shuffles of every source and the
same dropout; where two methods draw the same mixture they see the same samples in the same order.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from dograph.compare.arms import Ask
from dograph.compare.budget import Price, equal_compute, stretched
from dograph.compare.methods import Method
from dograph.compare.planning import Plans
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.plan.jobs import Job
from dograph.train.distributed import pick_device
from dograph.train.flops import step_flops


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
        return f"OMP_NUM_THREADS=1 {run}" if _on_cpu(self.config) else run


def lay_out(ask: Ask, corpus: Corpus, plans: Plans) -> list[Cell]:
    """All cells, seed by seed, so that pairs are complete early."""
    step_of = {m.label: step_flops(_trained(ask, m), corpus) for m in ask.methods}
    prices: dict[tuple[str, int], Price] = {}
    for seed in ask.seeds:
        for method in ask.methods:
            plan = plans.made.get(plans.key(method.label, seed))
            flops = plan.flops if plan is not None else 0.0
            prices[method.label, seed] = Price(flops, step_of[method.label])
    steps = dict.fromkeys(prices, ask.config.train.steps)
    if ask.budget == "compute":
        failed = {key for key in prices if plans.key(*key) in plans.failed}
        able = {key: price for key, price in prices.items() if key not in failed}
        steps |= equal_compute(able, ask.config.train.steps)
    return [
        _cell(ask, method, seed, steps[method.label, seed], prices[method.label, seed], plans)
        for seed in ask.seeds
        for method in ask.methods
    ]


def _cell(ask: Ask, method: Method, seed: int, steps: int, price: Price, plans: Plans) -> Cell:
    key = plans.key(method.label, seed)
    plan = plans.made.get(key)
    config = stretched(_trained(ask, method), steps)
    if plan is not None:
        mixer = config.mixer.model_validate({"name": "static", "file": str(plan.file)})
        config = config.model_copy(update={"mixer": mixer})
    run = (ask.out / "cells" / f"{method.label}-s{seed}").resolve()
    config = config.model_copy(update={"seed": seed, "run": str(run)})
    return Cell(method.label, seed, config, price, plans.failed.get(key))


def _trained(ask: Ask, method: Method) -> RunConfig:
    return method.config(ask.config)


def _on_cpu(config: RunConfig) -> bool:
    return pick_device(config.train.device).type == "cpu"
