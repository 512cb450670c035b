"""Plans of the methods that need proxies: one for all seeds, or one for each.

OUT/plans/<method>.yaml      the mixture, with provenance
OUT/plans/<method>.json      what it cost; with it, the plan is complete
With a plan for each seed, <method>-s<seed>.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask
from dograph.compare.methods import Method
from dograph.errors import DographError
from dograph.files import write_json
from dograph.mixtures.file import MixtureFile, read_mixture_file, write_mixture
from dograph.plan.jobs import Stopped
from dograph.plan.planning import make_plan
from dograph.plan.pool import Pool

Say = Callable[[str], None]
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

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"file": str(self.file)}


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


def _plan(ask: Ask, method: Method, seed: int | None, pool: Pool, say: Say) -> Planned:
    stem = method.label if seed is None else f"{method.label}-s{seed}"
    file = (ask.out / "plans" / f"{stem}.yaml").resolve()
    cost = file.with_suffix(".json")
    if not cost.is_file():
        own = Method(method.label, {**method.mixer, "seed": seed}) if seed is not None else method
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
