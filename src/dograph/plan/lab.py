"""The lab that planners get: facts of the run to plan for, and proxies trained for them.

LAB/0123456789abcdef/    a proxy: a run directory, named by its content
LAB/0123456789abcdef.log what it printed
LAB/proxies.jsonl        which folder is what
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dograph import __version__
from dograph.config import MixerConfig, RunConfig, merge, parse_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Planner, Proxy, ProxyResult
from dograph.mixers.registry import build_planner
from dograph.mixtures.file import Provenance
from dograph.mixtures.tables import MixtureTable
from dograph.plan.jobs import DamagedResultError, Job, JobProgress, Result, content_key, read_result
from dograph.plan.pool import Pool
from dograph.progress import duration
from dograph.train.assembly import CorpusLab, open_sampler, settled
from dograph.train.forecast import run_flops
from dograph.types import Mixture

INDEX = "proxies.jsonl"
SMALL = "proxy-1m"  # the smallest proxy that the literature plans with
# The part of the target that proxies are, where the user says nothing.
STEPS_SHARE, LEAST_STEPS = 4, 20
MOST_POINTS = 10  # validations of a proxy: as many points has its learning curve
LIGHT = ("tiny", "demo", "llama-tiny")  # targets whose proxy is the smallest model there is


@dataclass(frozen=True, slots=True)
class ProxyBatch:
    """Proxies that were asked for at once, and what is known of them."""

    jobs: Mapping[str, Job]  # by key: equal proxies are one job
    keys: Sequence[str]  # of the proxies, in the order they were asked for
    kept: Mapping[str, Result]  # made before, by this plan or another
    damaged: Sequence[str]  # keys

    @property
    def todo(self) -> dict[str, Job]:
        return {key: job for key, job in self.jobs.items() if key not in self.kept}


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


class ProxyLab(CorpusLab):
    """Trains proxies in a pool, each once: what was made stays in `folder`, by content.

    Without a pool it looks at the first proxies that are asked for (`asked`), and refuses.
    """

    def __init__(
        self,
        target: RunConfig,
        proxy: RunConfig,
        *,
        corpus: Corpus,
        folder: Path,
        pool: Pool | None = None,
    ) -> None:
        if Path(proxy.data.corpus).resolve() != corpus.directory:
            raise ConfigError(
                f"data.corpus={proxy.data.corpus} for proxies, but the run's corpus is "
                f"{corpus.directory}: proxies are trained on the run's own corpus"
            )
        super().__init__(target, corpus)
        self.proxy, self.folder, self.pool = proxy, folder.resolve(), pool
        self.asked: ProxyBatch | None = None
        self.used: dict[str, tuple[RunConfig, Result]] = {}  # what the plan rests on, by key
        self.cached: set[str] = set()  # keys of those that were there before the plan began
        self._flops: dict[str, float] = {}

    @property
    def proxy_steps(self) -> int:
        return self.proxy.train.steps

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Make the proxies that are not there yet; all of them are checked first."""
        self.asked = batch = self.survey(proxies)
        if self.pool is None:
            return super().train(proxies)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._label(batch)
        except OSError as error:
            raise ConfigError(
                f"proxies cannot be kept in {self.folder}: {error.strerror}; name another folder "
                "with --lab"
            ) from error
        with JobProgress("proxies", total=len(batch.jobs), cached=len(batch.kept)) as progress:
            for key in batch.damaged:
                label = batch.jobs[key].label
                progress.say(f'warning: the result of "{label}" is damaged; made anew: {key}')
            progress.say(self.describe(batch))
            todo, on = batch.todo, (progress.on_done, progress.on_start, progress.on_death)
            made = self.pool.run(list(todo.values()), *on) if todo else []
        results = dict(batch.kept) | dict(zip(todo, made, strict=True))
        for key, job in batch.jobs.items():
            if key not in self.used:
                self.used[key] = job.config, results[key]
                self.cached |= {key} & batch.kept.keys()
        # A plan must not depend on how long its proxies took, so it sees no more than this.
        names = [field.name for field in fields(ProxyResult)]
        seen = {key: {name: getattr(results[key], name) for name in names} for key in results}
        return [ProxyResult(**seen[key]) for key in batch.keys]

    def survey(self, proxies: Sequence[Proxy]) -> ProxyBatch:
        """Resolve and check every proxy, and look which are there; nothing is started."""
        jobs: dict[str, Job] = {}
        keys = []
        for proxy in proxies:
            config = self.resolve(proxy)
            keys.append(key := content_key(config, self.corpus))
            run = config.model_copy(update={"run": str(self.folder / key)})
            jobs.setdefault(key, Job(proxy.label, run))
        kept, damaged = {}, []
        for key in jobs:
            try:
                if (found := read_result(self.folder / key, self.corpus)) is not None:
                    kept[key] = found
            except DamagedResultError:
                damaged.append(key)
        return ProxyBatch(jobs=jobs, keys=keys, kept=kept, damaged=damaged)

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

    def describe(self, batch: ProxyBatch) -> str:
        """What a batch costs, in a line."""
        todo = [job.config for job in batch.todo.values()]
        number = len(todo) or len(batch.jobs)
        counted = f"{number} {'proxy' if number == 1 else 'proxies'}"
        if not todo:
            return f"{counted}, all made before: nothing to train"
        models = sorted({config.model.preset or str(config.model.path) for config in todo})
        steps = sorted({config.train.steps for config in todo})
        spent = sum(result.seconds for result in batch.kept.values())
        before = f", {len(batch.kept)} more made before ({duration(spent)})" if batch.kept else ""
        tokens, flops = sum(config.tokens for config in todo), sum(map(self.flops, todo))
        # Those of the run that the plan is for, drawing from a fixed mixture.
        natural = self.target.model_copy(update={"mixer": MixerConfig(name="natural")})
        share, cheaper = flops / self.flops(natural), ""
        if share > 1:  # another proxy to name, if that one costs less
            model = todo[0].model.model_copy(update={"preset": SMALL, "path": None})
            if self.flops(todo[0].model_copy(update={"model": model})) < self.flops(todo[0]):
                cheaper = f"; cheaper: --proxy model.preset={SMALL}"
        return (
            f"{counted} to train ({', '.join(models)}; "
            f"{' or '.join(map(str, steps))} steps){before}: {tokens:,} tokens, "
            f"{flops:.2e} FLOPs, {share:.2g} x those of the run that the plan is for{cheaper}"
        )

    def _label(self, batch: ProxyBatch) -> None:
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


def default_proxy(target: RunConfig, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """What a proxy is: the target with a smaller model and fewer steps; `changes` come on top.

    A quarter of the steps, and as large a part of them for warm-up; validations twice as often, two
    to ten in all, for with few steps they are what costs; at least two checkpoints. Sample length,
    batch, optimiser and precision stay.
    """
    changes = dict(changes or {})
    for taken in ("mixer", "seed", "run"):
        if taken in changes:
            raise ConfigError(
                f"{taken} is not a setting of proxies: the method gives each its mixer and seed, "
                "and the lab its folder"
            )
    given = {part: value for part, value in changes.items() if isinstance(value, Mapping)}
    steps, named = given.get("train", {}).get("steps"), given.get("model", {})
    if not isinstance(steps, int) or steps < 1:  # a wrong one is told by parse_config
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
    own = {
        "model": model,
        "train": {"steps": steps, "activation_checkpointing": False},
        "optim": {"warmup_steps": target.warmup_over(steps)},
        "eval": {
            "every": min(max((target.eval.every + 1) // 2 or half, steps // MOST_POINTS), half)
        },
        "checkpoint": {"every": min(target.checkpoint.every or half, half), "keep": 1},
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

    `lab` keeps the proxies by content; a plan that was interrupted goes on with those it has.
    `command` is told in the provenance.
    """
    planner, corpus = _opened(target)
    room = ProxyLab(target, proxy, corpus=corpus, folder=lab, pool=pool)
    mixture = planner.plan(room)
    open_sampler(target, corpus).weights_of(mixture)  # refuses what the run could not draw
    configs, results = zip(*room.used.values(), strict=True) if room.used else ((), ())
    tokenizer = corpus.manifest.tokenizer

    def one_or_all(values: Iterable[int]) -> int | list[int]:
        """A number that all proxies share, or those that they have."""
        found = sorted(set(values))
        return found[0] if len(found) == 1 else found

    facts: dict[str, Any] = {  # of one proxy, but for their number
        "model": proxy.model.preset or proxy.model.path,
        "parameters": one_or_all(result.parameters for result in results),
        "steps": one_or_all(config.train.steps for config in configs),
        "batch_size": proxy.train.batch_size,
        "tokens": one_or_all(result.tokens for result in results),
        "number": len(results),
    }
    provenance = Provenance(
        method=target.mixer.name,
        made_by=f"dograph {__version__}",
        corpus=corpus.digest,
        tokenizer=tokenizer.sha256,
        tokenizer_name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        seq_len=target.data.seq_len,
        proxy=facts if results else None,
        target_tokens=target.tokens,
        seeds=sorted({config.seed for config in configs}),
        settings=target.mixer.options,
        command=command,
    )
    cost = PlanCost(
        flops=math.fsum(map(room.flops, configs)),
        seconds=math.fsum(result.seconds for result in results),
        proxies=len(results),
        cached=len(room.cached),
    )
    return Plan(mixture, provenance, planner.findings, cost, planner.table)


def forecast_plan(target: RunConfig, proxy: RunConfig, *, lab: Path) -> str:
    """What the first proxies of a plan would cost; later ones may depend on what these show."""
    planner, corpus = _opened(target)
    room = ProxyLab(target, proxy, corpus=corpus, folder=lab)
    try:
        planner.plan(room)
    except ConfigError:
        if room.asked is None:
            raise
        return room.describe(room.asked)
    return f"{target.mixer.name} needs no proxies here"


def _opened(target: RunConfig) -> tuple[Planner, Corpus]:
    """The method and what it plans on; told before its proxies where they cannot do."""
    planner = build_planner(target.mixer.name, target.mixer.options)
    corpus = Corpus(target.data.corpus)
    if planner.needs_losses and not corpus.validation:
        raise ConfigError(
            f"{corpus.directory} has no validation text, and {target.mixer.name} learns from "
            "validation losses; prepare it with some held out, or plan with doremi or doge"
        )
    return planner, corpus
