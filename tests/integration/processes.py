"""Real training processes for tests: start, watch, kill, read back."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from dograph.records import unpacked

SETTINGS = (
    "data.seq_len=32",
    "model.preset=tiny",
    "train.steps=40",
    "train.batch_size=12",
    "eval.every=15",
    "eval.max_samples_per_source=4",
    "checkpoint.every=5",
    "optim.warmup_steps=5",
    "log.every=4",
    "mixer.name=natural",
)


def command(*arguments: str, ranks: int = 1) -> list[str]:
    if ranks == 1:
        return [sys.executable, "-m", "dograph", *arguments]
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *run, "-m", "dograph", *arguments]


def start(*arguments: str, ranks: int = 1) -> subprocess.Popen[str]:
    # One thread everywhere, so that a lone process and a rank of many compute alike.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command(*arguments, ranks=ranks),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def run(*arguments: str, ranks: int = 1, code: int = 0, seconds: float = 280) -> tuple[str, str]:
    """Run to the end; return what it printed."""
    process = start(*arguments, ranks=ranks)
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
    return out, err


def rows(directory: Path) -> list[dict[str, float]]:
    """Metrics without time and memory, the only parts that two equal runs may differ in."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [
        {
            name: value
            for name, value in unpacked(json.loads(line)).items()
            if not name.startswith(("time/", "memory/"))
        }
        for line in lines
    ]


def steps_logged(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def last_step(directory: Path) -> int:
    """The newest step in the metrics; a line still being written does not count."""
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return max((json.loads(x)["step"] for x in lines if x.endswith(b"\n")), default=0)


def wait_until(condition, process: subprocess.Popen[str], seconds: float = 150) -> bool:
    """Poll until the condition holds; False if the process ended first."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    raise TimeoutError(f"nothing happened in {seconds} s")
