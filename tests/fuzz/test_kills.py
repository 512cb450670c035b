"""Kill -9 at random moments of training, preparing and comparing; what comes out is the same.

30 kills in `make test-slow`, 1,000 in `make soak` (DOGRAPH_FUZZ_KILLS).
"""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress

import pytest
from processes import rows

from corpora import write_corpus
from fuzz.forks import Forks
from text_inputs import files_of, text, write_jsonl, write_tokenizer

KILLS = int(os.environ.get("DOGRAPH_FUZZ_KILLS", "30"))
SEED = int(os.environ.get("DOGRAPH_FUZZ_SEED", "0"))
SHARES = {"train": 0.5, "prepare": 0.4, "compare": 0.1}  # a comparison's workers import torch
TRAIN = ("data.seq_len=16", "model.preset=tiny", "train.steps=24", "train.batch_size=8")
TRAIN += ("eval.every=8", "eval.max_samples_per_source=4", "checkpoint.every=4", "log.every=3")
TRAIN += ("optim.warmup_steps=2", "train.device=cpu", "sketch.dim=64", "probe.rows=6")
DOGRAPH = ("mixer.name=dograph", "mixer.recipe=safe", "mixer.num_domains=3")
DOGRAPH += ("mixer.apply_weights_to=sampling", "mixer.remix_every=4", "mixer.warmup_ratio=0.1")


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    with Forks(tmp_path_factory.mktemp("log") / "log") as forks:
        yield forks


class Training:
    """A run of DoGraph that remixes: weights, domains and projections have a state."""

    def __init__(self, folder):
        self.corpus = write_corpus(folder / "corpus")

    def command(self, out):
        if (out / "config.yaml").exists():
            return ("train", "--resume", out)
        return ("train", f"data.corpus={self.corpus}", f"run={out}", *TRAIN, *DOGRAPH)

    def is_saving(self, out):
        return any(out.glob("checkpoints/.step-*.tmp"))

    def result(self, out):
        kept = ("samples.jsonl", "graph.jsonl", "weights.jsonl", "validation.jsonl")
        files = [out / name for name in kept] + sorted(out.glob("probes/*"))
        files += sorted(path for path in out.glob("checkpoints/*/**/*") if path.is_file())
        return rows(out), {str(path.relative_to(out)): path.read_bytes() for path in files}


class Preparing:
    """Two inputs, one of them compressed, with records to repair; two workers."""

    def __init__(self, folder):
        write_tokenizer(folder / "tokenizer.json")
        write_jsonl(folder / "web.jsonl.xz", [text(n, 100) for n in range(250)])
        books = write_jsonl(folder / "books.jsonl", [text(n, 100) for n in range(1000, 1250)])
        books.write_bytes(books.read_bytes() + b"{broken\n")
        self.folder = folder

    def command(self, out):
        inputs = (self.folder / "web.jsonl.xz", self.folder / "books.jsonl")
        options = ("--tokenizer", self.folder / "tokenizer.json", "--bad-records", "repair")
        return ("data", "prepare", *inputs, "--out", out, "--workers", 2, *options)

    def is_saving(self, out):
        return any(out.rglob(".*.tmp"))

    def result(self, out):
        return files_of(out)


class Comparing(Training):
    """Two methods; runs of a comparison keep what runs keep."""

    def command(self, out):
        methods = ("--mixers", "uniform", "--seeds", 1, "--workers", 1, "--out", out)
        return ("compare", f"data.corpus={self.corpus}", *TRAIN, *methods)

    def is_saving(self, out):
        return any(out.glob("cells/*/checkpoints/.step-*.tmp"))

    def result(self, out):
        found = json.loads((out / "compare.json").read_text())
        cells = {cell["label"]: (cell["losses"], cell["epochs"]) for cell in found["cells"]}
        return cells, {label: rows(out / "cells" / label) for label in cells}


TASKS = {"train": Training, "prepare": Preparing, "compare": Comparing}


def killed(forks, task, out, rng, seconds):
    """Start or go on, and kill; False if it ended before."""
    process = forks.start(*task.command(out))
    begun, at = time.monotonic(), rng.uniform(0, seconds)
    is_at_a_save = rng.random() < 0.3  # the kill comes while files are being written
    while time.monotonic() - begun < at:
        if is_at_a_save and task.is_saving(out):
            time.sleep(rng.uniform(0, 0.01))
            break
        time.sleep(0.0005)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process, signal.SIGKILL)
    code = forks.wait()
    assert code in (0, -signal.SIGKILL), f"exit code {code}\n{forks.log.read_text()[-3000:]}"
    return code != 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TASKS)
def test_kills_at_random_moments_change_nothing(forks, tmp_path, name):
    rng, task, kills = random.Random(f"{SEED} {name}"), TASKS[name](tmp_path), 0
    begun = time.monotonic()
    forks.run(*task.command(tmp_path / "whole"))
    seconds, truth = time.monotonic() - begun, task.result(tmp_path / "whole")
    out, goal = tmp_path / "out", round(KILLS * SHARES[name])
    while kills < goal:
        if killed(forks, task, out, rng, seconds):
            kills += 1
            if rng.random() < 0.8 and kills < goal:
                continue  # killed again after it has gone on
            forks.run(*task.command(out))
        assert task.result(out) == truth, f"not the same after {kills} kills"
        shutil.rmtree(out)
