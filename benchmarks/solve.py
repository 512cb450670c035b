"""From sketches to sample weights: what DoGraph's solve costs, kernels against their twins.

    python -m benchmarks.solve                                       a CPU, by the clock
    python -m benchmarks.solve --device cuda --name solve-h200

`device_ms` is what the device needs (CUDA events around the step, handed over while a long matrix
product keeps the device busy, so that no time of the host is in it), `host_ms` what handing over
takes, `wall_ms` one step with an idle device. `critical` ends where the weights are known, `whole`
also takes the batch in. First, kernels and twins are compared on random batches.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks import measure
from dograph import kernels
from dograph.domains import kmeans as twin
from dograph.domains.objectives import OBJECTIVES, solve_qp
from dograph.mixers.dograph import DoGraph
from dograph.types import Domains, Signals

SIZES = (48, 192, 256, 512, 1024, 4096)  # the last one in plain PyTorch
DOMAINS, WIDTH = (11, 64), 5120
BY_KERNELS = [size for size in SIZES if size <= kernels.MOST_SAMPLES]
INSTANCES = 50


def signals(step: int, size: int, device: str, projection: int = 0) -> Signals:
    """Sketches around a few directions of different length."""
    generator = torch.Generator(device).manual_seed(step)
    source_B = torch.randint(7, (size,), generator=generator, device=device)
    centre_SK = torch.randn(
        7, WIDTH, generator=torch.Generator(device).manual_seed(0), device=device
    )
    noise_BK = torch.randn(size, WIDTH, generator=generator, device=device)
    return Signals(
        step=step,
        num_samples=size,
        device=torch.device(device),
        source_B=source_B,
        sketch_BK=(0.3 * centre_SK[source_B] + noise_BK) * (1 + source_B[:, None]) / 4,
        block_norm_B=torch.ones(size, device=device),
        projection=projection,
    )


class Critical(DoGraph):
    """A mixer that stops when the weights are known."""

    stops = False

    def _take_in(self, *given: Any) -> None:
        if not self.stops:
            super()._take_in(*given)


def prepared(
    recipe: str, objective: str, size: int, num_domains: int, device: str
) -> tuple[Critical, Signals]:
    """A mixer in its stride, and a batch for it."""
    mixer = Critical(recipe, objective=objective, num_domains=num_domains, warmup_steps=0)
    for step in range(12 if recipe == "safe" else 3):
        mixer.weigh(signals(step, size, device))
    return mixer, signals(13, size, device)


def timed(
    step: Callable[[], object], device: str, repeats: int, products: int = 12
) -> dict[str, float]:
    """Medians over `repeats` steps, in milliseconds; a product is over 1 ms of an H200."""
    if device == "cpu":
        walls = []
        for _ in range(repeats):
            start = time.perf_counter()
            step()
            walls.append(time.perf_counter() - start)
        return {"wall_ms": 1e3 * statistics.median(walls)}
    busy = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    spent: dict[str, list[float]] = {"device_ms": [], "host_ms": [], "wall_ms": []}
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        spent["wall_ms"].append(1e3 * (time.perf_counter() - start))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(products):
            busy @ busy
        begin.record()
        start = time.perf_counter()
        step()
        spent["host_ms"].append(1e3 * (time.perf_counter() - start))
        end.record()
        torch.cuda.synchronize()
        spent["device_ms"].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in spent.items()}


def costs(args: argparse.Namespace) -> dict[str, Any]:
    """Every recipe and objective, with kernels and without."""
    result: dict[str, Any] = {}
    cases = [("paper", "uncertainty", size, number) for number in DOMAINS for size in SIZES]
    cases += [("safe", "precision", size, 11) for size in SIZES]
    cases += [("paper", name, 48, 11) for name in OBJECTIVES if name != "uncertainty"]
    for recipe, objective, size, number in cases:
        for code in ("kernels", "twins") if args.device != "cpu" else ("twins",):
            with nullcontext() if code == "kernels" else kernels.choose(False):
                mixer, batch = prepared(recipe, objective, size, number, args.device)
                for part in ("critical", "whole"):
                    mixer.stops = part == "critical"
                    mixer.weigh(batch)
                    times = (args.repeats, 12) if code == "kernels" else (3, 40)
                    spent = timed(partial(mixer.weigh, batch), args.device, *times)
                    name = f"{recipe}, {objective}, B={size}, M={number}"
                    result[f"{name}, {code}, {part}"] = spent
    return result


def parts(device: str, repeats: int, size: int, num_domains: int) -> dict[str, Any]:
    """What each part costs the device with 16 restarts."""
    from dograph.domains.partition import share_out
    from dograph.kernels.kmeans import restarts_by_kernel
    from dograph.kernels.partition import domains_by_kernel

    sketch_BK = signals(0, size, device).sketch_BK
    assert sketch_BK is not None
    batch = twin._sorted_space(sketch_BK, False)
    generator = torch.Generator(device).manual_seed(0)
    race_MRLB = twin.races(size, num_domains, 16, generator)

    def restarts() -> tuple[Tensor, Tensor]:
        return restarts_by_kernel(batch.space, race_MRLB, twin.ITERATIONS, twin.REFILL_EVERY)

    found = restarts()
    domains: Domains = domains_by_kernel(batch, *found, num_domains, torch.float32)
    weight_M = domains.share_M.clone()
    gram_MM, present_M = domains.gram_MM.double(), domains.present_M
    linear_M, finite = domains.spread_variance_M.double(), torch.ones_like(present_M[0])
    arms: dict[str, Callable[[], object]] = {
        "Gram and space": lambda: twin._sorted_space(sketch_BK, False),
        "draws": lambda: twin.races(size, num_domains, 16, generator),
        "restarts": restarts,
        "domains": lambda: domains_by_kernel(batch, *found, num_domains, torch.float32),
        "quadratic": lambda: solve_qp(gram_MM, linear_M, present_M),
        "sample weights": lambda: share_out(domains, weight_M, finite, 0.9),
    }
    return {name: timed(arm, device, repeats) for name, arm in arms.items()}


def differences(device: str) -> dict[str, Any]:
    """Kernels against twins on the same random inputs, all on the device."""
    labels = inertia = weights = domains = 0.0
    for seed in range(INSTANCES):
        size = BY_KERNELS[seed // 2 % len(BY_KERNELS)]
        sketch_BK = signals(seed, size, device).sketch_BK
        assert sketch_BK is not None
        _, point_BK, finite_B = twin._in_order_of_value(sketch_BK.double())
        space = twin._space(point_BK @ point_BK.T, finite_B, bool(seed % 2))
        num_domains = DOMAINS[seed // 10 % 2]
        race_MRLB = twin.races(size, num_domains, 16, torch.Generator(device).manual_seed(seed))
        mixer = DoGraph("paper", num_domains=num_domains, spherical_kmeans=bool(seed % 2))
        found: list[tuple[Tensor, Tensor, Domains, Tensor]] = []
        for chosen in (True, False):
            with kernels.choose(chosen):
                restarts = twin._restarted(space, race_MRLB, twin.ITERATIONS)
                known = mixer.scope.assign(sketch_BK, seed, 0)
                assert known is not None
                found.append((*restarts, known, mixer.objective(known)))
        (label_RB, inertia_R, known, weight_M), (twin_RB, twin_R, expected, twin_M) = found
        labels += float((label_RB != twin_RB).any(dim=1).sum())
        inertia = max(inertia, float(((inertia_R - twin_R) / twin_R).abs().max()))
        domains += float(not torch.equal(known.label_B, expected.label_B))
        if torch.equal(known.label_B, expected.label_B):
            weights = max(weights, float((weight_M - twin_M).abs().max()))
    return {
        "instances": INSTANCES,
        "restarts_with_other_labels": int(labels),
        "batches_with_other_domains": int(domains),
        "largest_relative_difference_of_inertia": inertia,
        "largest_difference_of_domain_weights": weights,
    }


def repeats_bit_for_bit(device: str, size: int) -> bool:
    """Whether the same batch gives the same weights ten times, without a wait for the device."""
    batch = signals(0, size, device)
    torch.cuda.set_sync_debug_mode("error")
    found = [DoGraph("paper").weigh(batch) for _ in range(10)]
    torch.cuda.set_sync_debug_mode("default")
    return all(torch.equal(weight_B, found[0]) for weight_B in found)


def main(args: argparse.Namespace) -> None:
    result: dict[str, Any] = {}
    if args.device != "cpu":
        result["kernels_against_twins"] = differences(args.device)
        result["repeats"] = {size: repeats_bit_for_bit(args.device, size) for size in SIZES}
        for size, number in product(BY_KERNELS, DOMAINS):
            found = parts(args.device, args.repeats, size, min(number, size))
            result[f"parts, B={size}, M={number}"] = found
    result["costs"] = costs(args)
    goal = "paper, uncertainty, B={}, M={}, kernels, critical".format
    result["target"] = {goal(*case): "device_ms below 0.3" for case in product(BY_KERNELS, DOMAINS)}
    result["target"] |= {goal(4096, number): "device_ms below 1" for number in DOMAINS}
    measure.write(
        args.name,
        "python -m benchmarks.solve " + " ".join(sys.argv[1:]),
        {
            **{k: v for k, v in vars(args).items() if k != "name"},
            "sketch": WIDTH,
            "domains": DOMAINS,
            "restarts": 16,
            "iterations": twin.ITERATIONS,
        },
        result,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--name", default="solve")
    main(parser.parse_args())
