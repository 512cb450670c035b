"""Good files to damage, made once by the real commands: a corpus, a run, a comparison."""

import atexit
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

from comparisons import ask, made
from fuzz.harness import command, damaged
from text_inputs import text, write_jsonl, write_tokenizer

SOURCES = ("alpha", "beta", "gamma")
STEPS, EDITED, STOPPED = 8, 4, 6  # steps of the run; after which its mixture changed; it stopped
SETTINGS = ("data.seq_len=16", "model.preset=tiny", f"train.steps={STEPS}", "train.batch_size=8")
SETTINGS += ("eval.every=4", "eval.max_samples_per_source=4", "checkpoint.every=2", "log.every=2")
SETTINGS += ("checkpoint.keep=9", "optim.warmup_steps=2", "mixer.name=dograph", "probe.rows=6")
SETTINGS += ("mixer.num_domains=3", "sketch.dim=64", "train.device=cpu")
PIQA = {"goal": "boil an egg", "sol1": "in water", "sol2": "in sand", "label": 0}


@cache
def folder() -> Path:
    """A folder of this process, removed when it ends."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-bases-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@cache
def tokenizer() -> Path:
    return write_tokenizer(folder() / "tokenizer.json")


@cache
def corpus() -> Path:
    """Files so small that the check at every start reads all of them."""
    inputs = [
        write_jsonl(folder() / f"{source}.jsonl", [text(1000 * n + k, 60) for k in range(60)])
        for n, source in enumerate(SOURCES)
    ]
    place = folder() / "corpus"
    command(
        *("data", "prepare", *inputs, "--out", place, "--tokenizer", tokenizer()),
        *("--validation-fraction", 0.2, "--workers", 1),
        allowed=(0,),
    )
    return place


@cache
def run() -> Path:
    """A complete run with every file that a run can have; its mixture was changed on the way."""
    place, mixture = folder() / "run", folder() / "mixture.yaml"
    mixture.write_text("weights: {alpha: 0.5, beta: 0.3, gamma: 0.2}\n")
    command("train", f"data.corpus={corpus()}", f"run={place}", *SETTINGS, allowed=(0,))
    for step in range(EDITED + 1, STEPS + 1):
        shutil.rmtree(place / f"checkpoints/step-{step:08d}", ignore_errors=True)
    command("train", "--resume", place, "--mixture", mixture, allowed=(0,))
    items = write_jsonl(folder() / "benchmarks" / "piqa" / "validation.jsonl", ["-"] * 4, **PIQA)
    command("eval", place, "--benchmarks", items.parents[1], "--tasks", "piqa", allowed=(0,))
    return place


@cache
def stopped_run() -> Path:
    """The same run, killed after its last metrics and before its last checkpoint."""
    place = folder() / "stopped"
    shutil.copytree(run(), place, symlinks=True)
    shutil.rmtree(place / f"checkpoints/step-{STEPS:08d}")
    (place / "model").unlink()
    return place


@cache
def comparison() -> Path:
    (folder() / "compared").mkdir()
    (folder() / "compared" / "corpus").symlink_to(corpus())
    made(ask(folder() / "compared", "uniform", out="out", seeds=(0,)))
    return folder() / "compared" / "out"


def copied(base: Path, place: Path) -> Path:
    shutil.copytree(base, place, symlinks=True)
    return place


def files_of(base: Path) -> list[str]:
    """Names of all files below a folder; links are left out."""
    return sorted(
        str(path.relative_to(base))
        for path in base.rglob("*")
        if path.is_file() and not path.is_symlink() and "model" not in path.parts[:-2]
    )


def damage(path: Path, seed: int) -> bool:
    """Damage a file in place; whether that changed its content."""
    before = path.read_bytes()
    after = damaged(random.Random(seed), before)
    path.write_bytes(after)
    return after != before


def rows(run: Path, after: int = 0) -> list[dict[str, float]]:
    """The metrics of later steps, without time and memory."""
    found = []
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        try:
            row = json.loads(line)
            if row["step"] > after:
                found.append(
                    {n: x for n, x in row.items() if not n.startswith(("time/", "memory/"))}
                )
        except (ValueError, LookupError, TypeError):  # damaged, and so at most of earlier steps
            continue
    return found
