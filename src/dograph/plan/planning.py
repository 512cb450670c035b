"""From a run to plan for to its mixture: build the planner, give it a lab, tell what came of it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph import __version__
from dograph.config import RunConfig, parse_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Planner, Proxy, ProxyResult
from dograph.mixers.registry import build_mixer, require_method
from dograph.mixtures.file import Provenance
from dograph.mixtures.tables import MixtureTable
from dograph.plan.lab import ProxyLab, Used
from dograph.plan.local import LocalPool
from dograph.plan.pool import Pool
from dograph.presets import merge
from dograph.train.assembly import open_sampler
from dograph.types import Mixture

# The part of the target that proxies are, where the user says nothing.
STEPS_SHARE, LEAST_STEPS = 4, 20
MOST_POINTS = 10  # validations of a proxy: as many points has its learning curve
LIGHT = ("tiny", "demo", "llama-tiny")  # targets whose proxy is the smallest model there is


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan rests on, proxies that were there before included."""

    flops: float
    seconds: float  # of the proxies' training, one after the other
    proxies: int
    cached: int  # of them, there before


@dataclass(frozen=True, slots=True)
class Plan:
    """A mixture, how it was made, what was found on the way, and what it cost."""

    mixture: Mixture
    provenance: Provenance
    findings: dict[str, Any]
    cost: PlanCost
    table: MixtureTable | None = None  # of the proxies, where the plan was fitted on one


def require_planner(config: RunConfig) -> Planner:
    """The mixer of a run to plan for."""
    require_method(config.mixer.name)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    if not isinstance(mixer, Planner):
        raise ConfigError(f"{config.mixer.name} makes no plan: it is no subclass of Planner")
    return mixer


def default_proxy(target: RunConfig, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """What a proxy is: the target with a smaller model and fewer steps; `changes` come on top.

    A quarter of the steps, and as large a part of them for warm-up; validations twice as often, two
    to ten in all, for with few steps they are what costs; at least two checkpoints. Sample length,
    batch, optimiser and precision stay.
    """
    changes = dict(changes or {})
    steps = _changed(changes, "train", "steps")
    if not isinstance(steps, int) or steps < 1:  # a wrong one is told by parse_config
        steps = max(target.train.steps // STEPS_SHARE, min(LEAST_STEPS, target.train.steps))
    half = math.ceil(steps / 2)
    values = merge(
        target.model_dump(mode="json"),
        {
            "model": _smaller(target, changes),
            "train": {"steps": steps, "activation_checkpointing": False},
            "optim": {"warmup_steps": target.warmup_over(steps)},
            "eval": {
                "every": min(max((target.eval.every + 1) // 2 or half, steps // MOST_POINTS), half)
            },
            "checkpoint": {"every": min(target.checkpoint.every or half, half), "keep": 1},
            "probe": {"rows": 0},
            "log": {"sinks": []},
        },
    )
    for taken in ("mixer", "seed", "run"):
        if taken in changes:
            raise ConfigError(
                f"{taken} is not a setting of proxies: the method gives each its mixer and seed, "
                "and the lab its folder"
            )
    values["mixer"] = {"name": "natural"}  # every proxy brings its own
    return parse_config(merge(values, changes), "--proxy")


def _smaller(target: RunConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    if target.model.preset is None:
        named = {"preset", "path"} & set(changes.get("model") or {})
        if not named:
            raise ConfigError(
                f"model.path={target.model.path}: which smaller model is its proxy? Name one, as "
                "in --proxy model.preset=gpt2-proxy or --proxy model.path=FOLDER"
            )
        return {"preset": None, "path": None}
    preset = "tiny" if target.model.preset in LIGHT else "gpt2-proxy"
    return {"preset": None if _changed(changes, "model", "path") else preset}


def _changed(changes: Mapping[str, Any], part: str, name: str) -> Any:
    values = changes.get(part)
    return values.get(name) if isinstance(values, Mapping) else None


def make_plan(
    target: RunConfig, proxy: RunConfig, *, lab: Path, pool: Pool, command: str | None = None
) -> Plan:
    """Ask `target`'s mixer for its plan, with a lab that trains proxies like `proxy`.

    `lab` keeps the proxies by content; a plan that was interrupted goes on with those it has.
    `command` is told in the provenance.
    """
    planner, corpus = _opened(target)
    room = ProxyLab(target, proxy, corpus=corpus, folder=lab, pool=pool)
    mixture = planner.plan(room)
    open_sampler(target, corpus).weights_of(mixture)  # refuses what the run could not draw
    used = list(room.used.values())
    return Plan(
        mixture=mixture,
        provenance=provenance_of(target, proxy, corpus, used, command),
        findings=planner.findings,
        cost=PlanCost(
            flops=math.fsum(one.flops for one in used),
            seconds=math.fsum(one.result.seconds for one in used),
            proxies=len(used),
            cached=sum(one.cached for one in used),
        ),
        table=planner.table,
    )


def _opened(target: RunConfig) -> tuple[Planner, Corpus]:
    """The method and what it plans on; told before its proxies where they cannot do."""
    planner, corpus = require_planner(target), Corpus(target.data.corpus)
    if planner.needs_losses and not corpus.validation:
        raise ConfigError(
            f"{corpus.directory} has no validation text, and {target.mixer.name} learns from "
            "validation losses; prepare it with some held out, or plan with doremi or doge"
        )
    return planner, corpus


def provenance_of(
    target: RunConfig,
    proxy: RunConfig,
    corpus: Corpus,
    used: Sequence[Used],
    command: str | None,
) -> Provenance:
    """How the mixture was made."""
    tokenizer = corpus.manifest.tokenizer
    facts: dict[str, Any] = {  # of one proxy, but for their number
        "model": proxy.model.preset or proxy.model.path,
        "parameters": _one_or_all(one.result.parameters for one in used),
        "steps": _one_or_all(one.config.train.steps for one in used),
        "batch_size": proxy.train.batch_size,
        "tokens": _one_or_all(one.result.tokens for one in used),
        "number": len(used),
    }
    return Provenance(
        method=target.mixer.name,
        made_by=f"dograph {__version__}",
        corpus=corpus.digest,
        tokenizer=tokenizer.sha256,
        tokenizer_name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        seq_len=target.data.seq_len,
        proxy=facts if used else None,
        target_tokens=target.tokens,
        seeds=sorted({one.config.seed for one in used}),
        settings=target.mixer.options,
        command=command,
    )


def _one_or_all(values: Iterable[int]) -> int | list[int]:
    """A number that all proxies share, or those that they have."""
    found = sorted(set(values))
    return found[0] if len(found) == 1 else found


class _FirstBatch(Exception):
    """Not an error: the way out of a plan that is only to be forecast."""


class _Surveyor(ProxyLab):
    """Looks at the first proxies that are asked for, and makes none."""

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        raise _FirstBatch(self.describe(self.survey(proxies)))


def forecast_plan(target: RunConfig, proxy: RunConfig, *, lab: Path) -> str:
    """What the first proxies of a plan would cost; later ones may depend on what these show."""
    planner, corpus = _opened(target)
    try:
        planner.plan(_Surveyor(target, proxy, corpus=corpus, folder=lab, pool=LocalPool(1)))
    except _FirstBatch as first:
        return str(first)
    return f"{target.mixer.name} needs no proxies here"
