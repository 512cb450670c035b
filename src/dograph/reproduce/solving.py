"""Milliseconds of one solve of each objective, at the size that the paper uses.

48 samples in 11 domains; sketches around a few directions of different length. A solve begins with
what is known of the domains and ends when their weights are on the device. On a GPU it is waited
for each time, so this is a latency, launches included.

Shapes: B samples, K sketch, M domains.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch

from dograph.bench.intervals import median_interval
from dograph.domains.objectives import build_objective
from dograph.domains.partition import partition
from dograph.reproduce.paper import OBJECTIVES
from dograph.rng import stream
from dograph.train.distributed import pick_device
from dograph.types import Domains

SAMPLES, WIDTH, NUM_DOMAINS = 48, 5120, 11
UNTIMED, TIMED = 5, 60


@dataclass(frozen=True, slots=True)
class Solve:
    """The median and its 95 % interval, from order statistics."""

    median: float
    low: float
    high: float
    record: dict[str, Any]

    @property
    def text(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f},{self.high:.3f}]"


def solve_times(device: str) -> dict[str, Solve]:
    """Of the paper's four objectives, taking turns."""
    place = pick_device(device)
    domains = example_domains().to(place)
    solvers = {name: build_objective(name) for name in OBJECTIVES}
    spent: dict[str, list[float]] = {name: [] for name in solvers}
    for turn in range(UNTIMED + TIMED):
        for name, solve in solvers.items():
            start = time.perf_counter()
            solve(domains)
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            if turn >= UNTIMED:
                spent[name].append(1e3 * (time.perf_counter() - start))
    found = {}
    for name, times in spent.items():
        median = median_interval(times)
        about = {"device": str(place), "samples": SAMPLES, "num_domains": NUM_DOMAINS}
        found[name] = Solve(median["median"], median["low"], median["high"], median | about)
    return found


def example_domains() -> Domains:
    """A batch in which every domain has samples."""
    draws = stream(0, "reproduce", "solving")
    label_B = torch.arange(SAMPLES) % NUM_DOMAINS
    centre_MK = torch.from_numpy(draws.standard_normal((NUM_DOMAINS, WIDTH)))
    noise_BK = torch.from_numpy(draws.standard_normal((SAMPLES, WIDTH)))
    length_B1 = 1 + label_B[:, None] / 4
    sketch_BK = (0.3 * centre_MK[label_B] + noise_BK) * length_B1
    return partition(sketch_BK.float(), label_B, NUM_DOMAINS)
