"""The lab of a planner: facts about the run to plan for, and proxies trained on request.

LAB/0123456789abcdef/    a proxy: a run directory, named by its content key
LAB/0123456789abcdef.log its output
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import InstanceOf

from dograph import __version__
from dograph.config import MixerConfig, RunConfig, merge, parse_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Planner, Proxy, ProxyResult
from dograph.mixers.registry import build_planner
from dograph.mixtures.file import MixtureFile, Provenance
from dograph.mixtures.tables import MixtureTable
from dograph.plan.jobs import RESULT, Job, JobProgress, Result, content_key, read_result
from dograph.plan.pool import Pool
from dograph.progress import duration
from dograph.train.assembly import CorpusLab, facts_of, open_sampler, settled
from dograph.train.forecast import run_flops

SMALL = "proxy-1m"  # the smallest proxy in the literature
STEPS_SHARE, LEAST_STEPS = 4, 20  # a proxy has 1/4 of the target's steps, at least 20
MOST_POINTS = 10  # validations of a proxy, the points of its learning curve
LIGHT = ("tiny", "demo", "llama-tiny")  # targets whose proxy is the smallest model


@dataclass(frozen=True, slots=True)
class ProxyBatch:
    """Proxies requested together, and which of them exist."""

    jobs: Mapping[str, Job]  # by key: equal proxies are one job
    keys: Sequence[str]  # of the proxies, in the order of the request
    kept: Mapping[str, Result]  # trained before, by this plan or another

    @property
    def todo(self) -> dict[str, Job]:
        return {key: job for key, job in self.jobs.items() if key not in self.kept}


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of a plan, including proxies that existed before."""

    flops: float
    seconds: float  # of training, summed over the proxies
    proxies: int
    cached: int = 0  # proxies that existed before


class Plan(MixtureFile):
    """The content of a mixture file, and what the mixture cost."""

    cost: PlanCost
    table: InstanceOf[MixtureTable] | None = None  # of the proxies, if the plan was fitted on one


class ProxyLab(CorpusLab):
    """Trains proxies in a pool, each once: results stay in `folder`, by content key.

    Without a pool it records the first request (`asked`) and raises.
    """

    def __init__(
        self, target: RunConfig, proxy: RunConfig, *, folder: Path, pool: Pool | None
    ) -> None:
        super().__init__(target, Corpus(target.data.corpus))
        if Path(proxy.data.corpus).resolve() != self.corpus.directory:
            what = f"data.corpus={proxy.data.corpus} for proxies"
            raise ConfigError(f"{what}; they need the run's own corpus, {self.corpus.directory}")
        self.proxy, self.folder, self.pool = proxy, folder.resolve(), pool
        self.proxy_steps = proxy.train.steps
        self.asked: ProxyBatch | None = None
        self.used: dict[str, tuple[RunConfig, Result]] = {}  # all proxies of the plan, by key
        self.cached: set[str] = set()  # keys of those that existed before the plan
        self._flops: dict[str, float] = {}

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Train the proxies that do not exist yet; all of them are checked first."""
        self.asked = batch = self.survey(proxies)
        if self.pool is None:
            return super().train(proxies)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"proxies cannot be kept in {self.folder}: {error.strerror}"
            raise ConfigError(f"{what}; name another folder with --lab") from error
        with JobProgress("proxies", total=len(batch.jobs), cached=len(batch.kept)) as progress:
            for key, job in (todo := batch.todo).items():
                if (self.folder / key / RESULT).exists():
                    what = f'the result of "{job.label}" is damaged; trained again: {key}'
                    progress.say(f"warning: {what}")
            progress.say(self.describe(batch))
            on = progress.on_done, progress.on_start, progress.on_death
            trained = self.pool.run(list(todo.values()), *on) if todo else []
        results = dict(batch.kept) | dict(zip(todo, trained, strict=True))
        self.cached |= batch.kept.keys() - self.used.keys()
        for key, job in batch.jobs.items():
            self.used.setdefault(key, (job.config, results[key]))
        # A plan must not depend on how long its proxies took, so it gets no field but these.
        names = [field.name for field in fields(ProxyResult)]
        seen = {key: {name: getattr(results[key], name) for name in names} for key in results}
        return [ProxyResult(**seen[key]) for key in batch.keys]

    def survey(self, proxies: Sequence[Proxy]) -> ProxyBatch:
        """Resolve and check every proxy, and see which exist; nothing is started."""
        jobs: dict[str, Job] = {}
        keys = []
        for proxy in proxies:
            config = self.resolve(proxy)
            keys.append(key := content_key(config, self.corpus))
            run = config.model_copy(update={"run": str(self.folder / key)})
            jobs.setdefault(key, Job(proxy.label, run))
        there = {key: read_result(self.folder / key, self.corpus) for key in jobs}
        kept = {key: result for key, result in there.items() if result is not None}
        return ProxyBatch(jobs=jobs, keys=keys, kept=kept)

    def resolve(self, proxy: Proxy) -> RunConfig:
        """The lab's configuration with the proxy's settings, mixer and seed.

        A proxy that sets its steps but not its warm-up keeps the warm-up's share of the steps.
        """
        base: dict[str, Any] = self.proxy.model_dump(mode="json")
        own = merge({}, dict(proxy.settings))
        steps = own.get("train", {}).get("steps")
        if isinstance(steps, int) and "warmup_steps" not in own.get("optim", {}):
            own = merge(own, {"optim": {"warmup_steps": self.proxy.warmup_over(steps)}})
        values = merge(base, own) | {"mixer": dict(proxy.mixer), "seed": proxy.seed}
        config = parse_config(values, f'proxy "{proxy.label}"')
        if config.data.corpus != self.proxy.data.corpus:
            raise ConfigError(f'proxy "{proxy.label}": data.corpus must be that of the run')
        return settled(config)

    def flops(self, config: RunConfig) -> float:
        """FLOPs of a run; proxies that differ only in mixture or seed cost the same."""
        parts = config.model_dump_json(include={"data", "model", "sketch", "train", "probe"})
        shape = f"{parts} {config.mixer.name}"
        if shape not in self._flops:
            self._flops[shape] = run_flops(config, self.corpus)
        return self._flops[shape]

    def describe(self, batch: ProxyBatch) -> str:
        """The cost of a batch in one line."""
        todo = [job.config for job in batch.todo.values()]
        number = len(todo) or len(batch.jobs)
        counted = f"{number} {'proxy' if number == 1 else 'proxies'}"
        if not todo:
            return f"{counted}, all made before: nothing to train"
        models = ", ".join(sorted({own.model.preset or str(own.model.path) for own in todo}))
        steps = " or ".join(map(str, sorted({config.train.steps for config in todo})))
        spent = sum(result.seconds for result in batch.kept.values())
        before = f", {len(batch.kept)} more made before ({duration(spent)})" if batch.kept else ""
        tokens, flops = sum(config.tokens for config in todo), sum(map(self.flops, todo))
        # relative to the run that the plan is for, with a fixed mixture
        natural = self.target.model_copy(update={"mixer": MixerConfig(name="natural")})
        share, cheaper = flops / self.flops(natural), ""
        if share > 1:  # suggest a smaller proxy, if there is one
            model = todo[0].model.model_copy(update={"preset": SMALL, "path": None})
            if self.flops(todo[0].model_copy(update={"model": model})) < self.flops(todo[0]):
                cheaper = f"; cheaper: --proxy model.preset={SMALL}"
        return (
            f"{counted} to train ({models}; {steps} steps){before}: {tokens:,} tokens, "
            f"{flops:.2e} FLOPs, {share:.2g} x those of the run that the plan is for{cheaper}"
        )


def default_proxy(target: RunConfig, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of proxies: the target with a smaller model and fewer steps, then `changes`.

    A quarter of the steps with the same share of warm-up; validations twice as often, but two to
    ten in all, because they are costly in short runs; at least two checkpoints. Sample length,
    batch, optimizer and precision stay.
    """
    changes = dict(changes or {})
    for taken in ("mixer", "seed", "run"):
        if taken in changes:
            who = "the lab" if taken == "run" else "the method"
            raise ConfigError(f"{taken} is not a setting of proxies: {who} sets it; leave it out")
    given = {part: value for part, value in changes.items() if isinstance(value, Mapping)}
    steps, named = given.get("train", {}).get("steps"), given.get("model", {})
    if not isinstance(steps, int) or steps < 1:  # parse_config reports a wrong value
        steps = max(target.train.steps // STEPS_SHARE, min(LEAST_STEPS, target.train.steps))
    half = math.ceil(steps / 2)
    if target.model.preset is None and not {"preset", "path"} & named.keys():
        raise ConfigError(
            f"model.path={target.model.path}: which smaller model is its proxy? Name one, as in "
            "--proxy model.preset=gpt2-proxy or --proxy model.path=FOLDER"
        )
    model: dict[str, Any] = {"preset": None, "path": None}
    if target.model.preset is not None and not named.get("path"):
        model["preset"] = "tiny" if target.model.preset in LIGHT else "gpt2-proxy"
    every = min(max((target.eval.every + 1) // 2 or half, steps // MOST_POINTS), half)
    own = {
        "model": model,
        "train": {"steps": steps, "activation_checkpointing": False},
        "optim": {"warmup_steps": target.warmup_over(steps)},
        "eval": {"every": every},
        "checkpoint": {"every": min(target.checkpoint.every or half, half), "keep": 2},
        "probe": {"rows": 0},
        "log": {"sinks": []},
    }
    values = merge(target.model_dump(mode="json"), own)
    values["mixer"] = {"name": "natural"}  # every proxy brings its own
    return parse_config(merge(values, changes), "--proxy")


def make_plan(
    target: RunConfig, proxy: RunConfig, *, lab: Path, pool: Pool, command: str | None = None
) -> Plan:
    """Ask `target`'s mixer for its plan, with a lab that trains proxies like `proxy`.

    `lab` keeps the proxies by content, so an interrupted plan reuses those that exist. `command`
    is recorded in the provenance.
    """
    planner, proxies = _opened(target, proxy, lab, pool)
    mixture, corpus = planner.plan(proxies), proxies.corpus
    open_sampler(target, corpus).weights_of(mixture)  # refuses what the run could not draw
    configs, results = zip(*proxies.used.values(), strict=True) if proxies.used else ((), ())

    def one_or_all(values: Iterable[int]) -> int | list[int]:
        """The number that all proxies share, or the list of different ones."""
        distinct = sorted(set(values))
        return distinct[0] if len(distinct) == 1 else distinct

    small: dict[str, Any] = {
        "model": proxy.model.preset or proxy.model.path,
        "parameters": one_or_all(result.parameters for result in results),
        "steps": one_or_all(config.train.steps for config in configs),
        "batch_size": proxy.train.batch_size,
        "tokens": one_or_all(result.tokens for result in results),
        "number": len(results),
    }
    facts = asdict(facts_of(target, corpus))
    provenance = Provenance(
        method=target.mixer.name,
        made_by=f"dograph {__version__}",
        proxy=small if results else None,
        target_tokens=facts.pop("tokens"),
        seeds=sorted({config.seed for config in configs}),
        settings=target.mixer.options,
        command=command,
        **{name: fact for name, fact in facts.items() if name != "sources"},
    )
    cost = PlanCost(
        flops=math.fsum(map(proxies.flops, configs)),
        seconds=math.fsum(result.seconds for result in results),
        proxies=len(results),
        cached=len(proxies.cached),
    )
    own = {"provenance": provenance, "findings": dict(planner.findings), "table": planner.table}
    return Plan(weights=dict(mixture.weights), cost=cost, **own)


def forecast_plan(target: RunConfig, proxy: RunConfig, *, lab: Path) -> str:
    """The cost of the first proxies of a plan; later ones may depend on their losses."""
    planner, proxies = _opened(target, proxy, lab, None)
    try:
        planner.plan(proxies)
    except ConfigError:
        if proxies.asked is None:
            raise
        return proxies.describe(proxies.asked)
    return f"{target.mixer.name} needs no proxies here"


def _opened(
    target: RunConfig, proxy: RunConfig, folder: Path, pool: Pool | None
) -> tuple[Planner, ProxyLab]:
    """The planner and its lab, checked before any proxy is trained."""
    planner = build_planner(target.mixer.name, target.mixer.options)
    proxies = ProxyLab(target, proxy, folder=folder, pool=pool)
    if planner.needs_losses and not proxies.corpus.validation:
        raise ConfigError(
            f"{proxies.corpus.directory} has no validation text, and {target.mixer.name} learns "
            "from validation losses; prepare it with some held out, or plan with doremi or doge"
        )
    return planner, proxies
