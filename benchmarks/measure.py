"""How the figures are taken: interleaved blocks, medians of ratios, exact intervals."""

import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dograph.stats import median_estimate, median_record

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


def interleave(
    arms: dict[str, Callable[[], None]],
    blocks: int,
    steps: int,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds per step of each arm in each block of `steps` steps.

    Inside a block the arms take turns step by step, in an order that turns too: a machine that is
    busy for a second is busy for all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for _ in range(blocks):
        spent = dict.fromkeys(names, 0.0)
        for turn in range(steps):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                arms[name]()
                wait()
                spent[name] += time.perf_counter() - start
        for name in names:
            seconds[name].append(spent[name] / steps)
    return seconds


def median_interval(values: list[float]) -> dict[str, Any]:
    return median_record(median_estimate(values))


def ratio(over: list[float], under: list[float]) -> dict[str, Any]:
    """Median of block ratios, with its interval."""
    return median_interval([a / b for a, b in zip(over, under, strict=True)])


def write(
    name: str, command: str, config: dict[str, Any], result: dict[str, Any], *, quiet: bool = False
) -> None:
    """One JSON file a benchmark, with all that is needed to judge and repeat it."""
    record = {
        "benchmark": name,
        "command": command,
        "config": config,
        "result": result,
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    if not quiet:
        print(json.dumps({name: result}, indent=2), flush=True)


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {library: version(library) for library in LIBRARIES},
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
