"""Tiny jobs, planners that ask for them, and a pool that makes them here and now."""

import gc
import os
from contextlib import contextmanager
from pathlib import Path

from dograph.config import parse_config
from dograph.errors import DographError
from dograph.mixers.base import Planner, Proxy
from dograph.models.build import build_model
from dograph.plan.jobs import Job, Stopped, run_job
from dograph.plan.pool import JobError
from dograph.types import Mixture

STEPS = 12


def config_of(corpus, run="runs/unused", weights=None, steps=STEPS, **parts):
    """A run of a second: three sources, a tiny model."""
    weights = weights or {"alpha": 1.0, "beta": 2.0, "gamma": 3.0}
    values = {
        "run": str(run),
        "data": {"corpus": str(corpus), "seq_len": 32},
        "model": {"preset": "tiny"},
        "mixer": {"name": "static", "weights": weights},
        "train": {"steps": steps, "batch_size": 8},
        "optim": {"warmup_steps": 2},
        "eval": {"every": 4, "max_samples_per_source": 4},
        "checkpoint": {"every": 3, "keep": 1},
        "probe": {"rows": 0},
    }
    for name, part in parts.items():
        values[name] = {**values.get(name, {}), **part} if isinstance(part, dict) else part
    return parse_config(values, "test")


def job_of(corpus, run, label="proxy", **parts):
    return Job(label, config_of(corpus, run, **parts))


@contextmanager
def imports_frozen():
    """Every run collects garbage twice, and would look through all that was imported."""
    build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Here:
    """A pool of this process alone: what it was asked for, and the labels of what it made.

    After `most` jobs it is stopped, as by Ctrl-C.
    """

    def __init__(self, most=None):
        self.asked, self.made, self.most = [], [], most

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, jobs, on_done=None, on_start=None, on_death=None):
        results = []
        for job in jobs:
            if len(self.made) == self.most:
                raise Stopped(2)
            self.asked.append(job)
            on_start(job)
            try:
                results.append(run_job(job))
            except (DographError, ArithmeticError) as error:
                raise JobError(job, f" failed: {error}") from error
            self.made.append(job.label)
            on_done(job, results[-1])
        return results


class Ladder(Planner):
    """Asks for `number` mixtures of two sources, and weighs sources by the losses it sees."""

    def __init__(self, number=3, steps=None):
        super().__init__()
        self.number, self.steps = number, steps

    def plan(self, lab):
        first, second, *_ = lab.tokens
        settings = {} if self.steps is None else {"train": {"steps": self.steps}}
        proxies = [
            Proxy(
                f"ladder {n}",
                {"name": "static", "weights": {first: 1.0, second: float(n + 1)}},
                seed=n,
                settings=settings,
            )
            for n in range(self.number)
        ]
        results = lab.train(proxies)
        losses = {name: sum(result.losses[name] for result in results) for name in lab.tokens}
        self.findings = {"losses": losses, "advice": ["look twice"]}
        return Mixture.normalised(losses)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def without_torchrun():
    """The environment of a process that computes as a worker does."""
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
