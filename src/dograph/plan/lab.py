"""The lab that planners get: facts of the run to plan for, and proxies trained for them.

LAB/0123456789abcdef/    a proxy: a run directory, named by its content
LAB/0123456789abcdef.log what it printed
LAB/proxies.jsonl        which folder is what
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.config import MixerConfig, RunConfig, parse_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Proxy, ProxyResult
from dograph.plan.jobs import DamagedResultError, Job, Result, read_result
from dograph.plan.keys import content_key
from dograph.plan.pool import Pool
from dograph.plan.progress import Tally, clock, open_progress
from dograph.presets import merge
from dograph.train.assembly import planned_parameters
from dograph.train.flops import run_flops
from dograph.train.lab import open_lab
from dograph.train.start import settled

INDEX = "proxies.jsonl"
SMALL = "proxy-1m"  # the smallest proxy that the literature plans with


@dataclass(frozen=True, slots=True)
class Batch:
    """Proxies that were asked for at once, and what is known of them."""

    jobs: Mapping[str, Job]  # by key: equal proxies are one job
    keys: Sequence[str]  # of the proxies, in the order they were asked for
    kept: Mapping[str, Result]  # made before, by this plan or another
    damaged: Sequence[str]  # keys
    tokens: int
    flops: float


@dataclass(frozen=True, slots=True)
class Used:
    """A proxy that the plan rests on."""

    config: RunConfig
    result: Result
    flops: float
    cached: bool  # it was there before the plan began


class ProxyLab:
    """Trains proxies in a pool, each once: what was made stays in `folder`, by content."""

    def __init__(
        self, target: RunConfig, proxy: RunConfig, *, corpus: Corpus, folder: Path, pool: Pool
    ) -> None:
        if Path(proxy.data.corpus).resolve() != corpus.directory:
            raise ConfigError(
                f"data.corpus={proxy.data.corpus} for proxies, but the run's corpus is "
                f"{corpus.directory}: proxies are trained on the run's own corpus"
            )
        self.target, self.proxy, self.corpus = target, proxy, corpus
        self.folder, self.pool = folder.resolve(), pool
        facts = open_lab(target, corpus)
        self.tokens, self.strata = facts.tokens, facts.strata
        self.budget, self.steps = facts.budget, facts.steps
        self.used: dict[str, Used] = {}  # by key
        self._flops: dict[str, float] = {}

    @property
    def proxy_steps(self) -> int:
        return self.proxy.train.steps

    @property
    def parameters(self) -> int:
        return planned_parameters(self.target, self.corpus)

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Make the proxies that are not there yet; all of them are checked first."""
        batch = self.survey(proxies)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._label(batch)
        except OSError as error:
            raise ConfigError(
                f"proxies cannot be kept in {self.folder}: {error.strerror}; name another folder "
                "with --lab"
            ) from error
        todo = {key: job for key, job in batch.jobs.items() if key not in batch.kept}
        tally = Tally(total=len(batch.jobs), cached=len(batch.kept))
        progress = open_progress(tally)
        for key in batch.damaged:
            label = batch.jobs[key].label
            progress.say(f'warning: the result of "{label}" is damaged; made anew: {key}')
        progress.say(self.describe(batch))

        def on_start(job: Job) -> None:
            tally.begun(job.label)
            progress.update()

        def on_done(job: Job, result: Result) -> None:
            tally.ended(job.label, result.seconds)
            progress.update()

        def on_death(job: Job, how: str) -> None:
            progress.say(f'the process of "{job.label}" died ({how}); it goes on in another')

        try:
            jobs = list(todo.values())
            made = self.pool.run(jobs, on_done, on_start, on_death) if jobs else []
        finally:
            progress.close()
        results = dict(batch.kept) | dict(zip(todo, made, strict=True))
        for key, job in batch.jobs.items():
            if key not in self.used:
                flops, cached = self.flops(job.config), key in batch.kept
                self.used[key] = Used(job.config, results[key], flops, cached)
        return [_told(results[key]) for key in batch.keys]

    def survey(self, proxies: Sequence[Proxy]) -> Batch:
        """Resolve and check every proxy, and look which are there; nothing is started."""
        jobs: dict[str, Job] = {}
        keys = []
        for proxy in proxies:
            config = self.resolve(proxy)
            key = content_key(config, self.corpus)
            keys.append(key)
            run = config.model_copy(update={"run": str(self.folder / key)})
            jobs.setdefault(key, Job(proxy.label, run))
        kept, damaged = {}, []
        for key in jobs:
            try:
                found = read_result(self.folder / key, self.corpus)
            except DamagedResultError:
                damaged.append(key)
                continue
            if found is not None:
                kept[key] = found
        configs = [job.config for key, job in jobs.items() if key not in kept]
        return Batch(
            jobs=jobs,
            keys=keys,
            kept=kept,
            damaged=damaged,
            tokens=sum(config.tokens for config in configs),
            flops=sum(self.flops(config) for config in configs),
        )

    def resolve(self, proxy: Proxy) -> RunConfig:
        """The lab's configuration with the proxy's settings, mixer and seed.

        A proxy that sets its steps and not its warm-up keeps the part of the run that is warm-up.
        """
        base: dict[str, Any] = self.proxy.model_dump(mode="json")
        own = merge({}, dict(proxy.settings))
        steps = own.get("train", {}).get("steps")
        if isinstance(steps, int) and "warmup_steps" not in own.get("optim", {}):
            own = merge(own, {"optim": {"warmup_steps": self.proxy.warmup_over(steps)}})
        values = merge(base, own) | {"mixer": dict(proxy.mixer), "seed": proxy.seed}
        config = parse_config(values, f'proxy "{proxy.label}"')
        if config.data.corpus != self.proxy.data.corpus:
            raise ConfigError(f'proxy "{proxy.label}": data.corpus must be the run\'s own')
        return settled(config)

    def flops(self, config: RunConfig) -> float:
        """Of a whole run; proxies that differ in mixture or seed alone cost the same."""
        parts = config.model_dump_json(include={"data", "model", "sketch", "train", "probe"})
        shape = f"{parts} {config.mixer.name}"
        if shape not in self._flops:
            self._flops[shape] = run_flops(config, self.corpus)
        return self._flops[shape]

    @property
    def target_flops(self) -> float:
        """Of the run that the plan is for, drawing from a fixed mixture."""
        return self.flops(self.target.model_copy(update={"mixer": MixerConfig(name="natural")}))

    def describe(self, batch: Batch) -> str:
        """What a batch costs, in a line."""
        todo = [job.config for key, job in batch.jobs.items() if key not in batch.kept]
        if not todo:
            return f"{_counted(len(batch.jobs))}, all made before: nothing to train"
        models = sorted({config.model.preset or str(config.model.path) for config in todo})
        steps = sorted({config.train.steps for config in todo})
        spent = sum(result.seconds for result in batch.kept.values())
        before = f", {len(batch.kept)} more made before ({clock(spent)})" if batch.kept else ""
        share = batch.flops / self.target_flops
        smaller = self._smaller(todo[0]) if share > 1 else ""
        return (
            f"{_counted(len(todo))} to train ({', '.join(models)}; "
            f"{' or '.join(map(str, steps))} steps){before}: {batch.tokens:,} tokens, "
            f"{batch.flops:.2e} FLOPs, {share:.2g} x those of the run that the plan is for{smaller}"
        )

    def _smaller(self, proxy: RunConfig) -> str:
        """Another proxy to name where a plan costs more than its run, if that one costs less."""
        model = proxy.model.model_copy(update={"preset": SMALL, "path": None})
        is_smaller = self.flops(proxy.model_copy(update={"model": model})) < self.flops(proxy)
        return f"; cheaper: --proxy model.preset={SMALL}" if is_smaller else ""

    def _label(self, batch: Batch) -> None:
        """Tell in INDEX which folder is what, once for each name that a folder was asked by."""
        index = self.folder / INDEX
        told = set(index.read_text(encoding="utf-8").splitlines()) if index.is_file() else set()
        lines = []
        for key, job in batch.jobs.items():
            config = job.config
            facts: dict[str, Any] = {"folder": key, "label": job.label, "seed": config.seed}
            facts |= {"for": self.target.mixer.name, "mixer": config.mixer.model_dump(mode="json")}
            line = json.dumps(facts, ensure_ascii=False)
            lines += [line + "\n"] if line not in told else []
        with open(index, "a", encoding="utf-8") as file:
            file.write("".join(lines))


def _counted(number: int) -> str:
    return f"{number} {'proxy' if number == 1 else 'proxies'}"


def _told(result: Result) -> ProxyResult:
    return ProxyResult(
        losses=result.losses,
        curve=result.curve,
        state=result.state,
        model=result.model,
        parameters=result.parameters,
        tokens=result.tokens,
    )
