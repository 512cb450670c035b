"""Runs that are given another mixture on the way, and runs that had it in their settings."""

import json

from dograph.config import resolve_config
from dograph.train.trainer import resume_run, start_run
from tiny_steps import ALONE

FIRST = {"alpha": 0.6, "beta": 0.3, "gamma": 0.1}
SECOND = {"alpha": 0.1, "beta": 0.2, "gamma": 0.7}
THIRD = {"alpha": 0.45, "beta": 0.0, "gamma": 0.55}
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.steps=12",
    "train.batch_size=7",
    "eval.every=0",
    "eval.max_samples_per_source=2",
    "checkpoint.every=5",
    "checkpoint.keep=9",
    "optim.warmup_steps=2",
    "log.every=4",
)


def configured(corpus, directory, *more, mixer="static"):
    own = (f"mixer.weights={json.dumps(FIRST)}",) if mixer == "static" else ()
    given = [f"data.corpus={corpus}", f"run={directory}", f"mixer.name={mixer}"]
    return resolve_config(None, [*given, *SETTINGS, *own, *more])


def begin(corpus, directory, *more, mixer="static", world=ALONE):
    return start_run(configured(corpus, directory, *more, mixer=mixer), world)


def go_on(directory, mixture=None, world=ALONE, *, settings=(), strict=False):
    config = resolve_config(str(directory / "config.yaml"), [f"run={directory}", *settings])
    mixture = None if mixture is None else str(mixture)
    return resume_run(config, world, mixture, strict=strict)


def stop_after(trainer, step):
    """Train until `step` steps are made, as if asked to stop then."""
    trainer.stop_asked = lambda _: 15 if trainer.done == step else 0
    assert trainer.train() == 15
    trainer.run.unlock()


def finish(trainer):
    assert trainer.train() == 0
    trainer.run.unlock()


def scheduled(corpus, directory, stages):
    """The same mixtures, known from the start."""
    trainer = begin(corpus, directory, f"mixer.stages={json.dumps(stages)}", mixer="scheduled")
    finish(trainer)
    return directory


def write(path, weights, **more):
    path.write_text(json.dumps({"weights": weights, **more}))  # JSON is YAML
    return path


def log_of(directory, *, reasons=False):
    """The weight log; the reasons of entries apart."""
    rows = [json.loads(line) for line in (directory / "weights.jsonl").read_text().splitlines()]
    return rows if reasons else [{k: v for k, v in row.items() if k != "reason"} for row in rows]


def request_of(identity, weights):
    """What `dograph mix` leaves in a run directory."""
    given = {"identity": identity, "given": "by hand", "weights": weights}
    return given | {"provenance": None, "notes": []}


def ask_at(trainer, requests):
    """Place requests when so many steps are made: {steps: request}."""
    advance = trainer.advance

    def asking(loader):
        if trainer.done in requests and trainer.world.is_main:
            trainer.edits.requests.place(requests[trainer.done])
        return advance(loader)

    trainer.advance = asking
    trainer.edits.listen()


def train_on_ranks(world, corpus, directory, requests):
    trainer = begin(corpus, directory, world=world)
    ask_at(trainer, requests)
    finish(trainer)
    return list(trainer.edits.due)


def edit_of(step, new, old=None):
    """A line of edits.jsonl."""
    edit = {"step": step, "weights": new, "old": old or FIRST, "new": new, "given": "m.yaml"}
    edit |= {"provenance": None, "how": "resume", "identity": f"{step}", "notes": []}
    edit |= {"time": "2026-01-01T00:00:00+00:00", "made_by": "tests", "until": None, "undoes": []}
    return json.dumps(edit) + "\n"


def go_on_on_ranks(world, directory, mixture):
    trainer = go_on(directory, mixture, world)
    finish(trainer)
    return list(trainer.edits.due)


def extend_on_ranks(world, directory, steps):
    trainer = go_on(directory, None, world, settings=[f"train.steps={steps}"])
    begun = trainer.done
    finish(trainer)
    return begun, trainer.done, trainer.config.train.extended


def metrics(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows
    ]


def assert_same(run, other):
    assert metrics(run) == metrics(other)
    assert log_of(run) == log_of(other)
    for file in ("model/model", "checkpoints/step-00000012/optimizer"):
        one, two = (path / f"{file}.safetensors" for path in (run, other))
        assert one.read_bytes() == two.read_bytes()
