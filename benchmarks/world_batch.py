"""Bytes and time of what ranks exchange in a step so that the whole batch can be weighed.

    python -m benchmarks.world_batch                 four processes over gloo on this machine
    python -m benchmarks.world_batch --ranks 2 --samples 256

Every rank receives the sketches, block norms and losses of all other ranks' samples: an all-gather
by `gather_signals`, and one of the losses after the backward. The gradients are averaged besides,
with or without weights; an all-reduce of 10 million numbers is timed for comparison.

Shapes: B samples, b those of a rank, K sketch.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks import measure
from dograph.config import DEFAULT_DIM
from dograph.sketch.gradients import MicroBatchResult, WorldRows, gather_signals
from dograph.train.distributed import World

GRADIENT = 10_000_000  # numbers
REPEATS = 15
CPU = torch.device("cpu")


def received_bytes(num_samples: int, dim: int, ranks: int) -> int:
    """Bytes that a rank receives in a step: 4 (K + 2) for each sample of another rank.

    Ranks send equally many rows, those with fewer samples pad theirs.
    """
    most = -(-num_samples // ranks)
    numbers = dim + 1 + 1  # a sketch, its block norm, a loss
    return (ranks - 1) * most * 4 * numbers


def exchange(num_samples: int, dim: int, rank: int, ranks: int) -> Callable[[], None]:
    """What a step of DoGraph exchanges, with random sketches."""
    sizes = World(rank=rank, size=ranks, device=CPU).sizes(num_samples)
    rows = WorldRows(sizes[rank], CPU, sizes)
    sketch_bK = torch.randn(sizes[rank], dim)
    norm_b, loss_b = sketch_bK.norm(dim=1), torch.rand(sizes[rank])
    result = MicroBatchResult(loss_b, None, sketch_bK, norm_b)

    def run() -> None:
        gather_signals([result], [rows], losses=False, step=0)
        rows.gather(loss_b)

    return run


def seconds_of(work: Callable[[], object]) -> list[float]:
    """Seconds of every repeat; ranks start together, and the slowest counts."""
    spent = []
    for _ in range(REPEATS + 2):
        dist.barrier()
        start = time.perf_counter()
        work()
        slowest = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        spent.append(float(slowest))
    return spent[2:]


def work(rank: int, args: argparse.Namespace, address: str, results: "SimpleQueue[Any]") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=args.ranks)
    found: dict[str, Any] = {"exchange": {}}
    for num_samples in args.samples:
        seconds = seconds_of(exchange(num_samples, args.dim, rank, args.ranks))
        size = received_bytes(num_samples, args.dim, args.ranks)
        found["exchange"][str(num_samples)] = {
            "received_bytes": size,
            "seconds": measure.median_interval(seconds),
            "bytes_per_second": measure.median_interval([size / s for s in seconds]),
        }
    gradient = torch.zeros(GRADIENT)
    seconds = seconds_of(lambda: dist.all_reduce(gradient))
    found["all_reduce"] = {"numbers": GRADIENT, "seconds": measure.median_interval(seconds)}
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def main(args: argparse.Namespace) -> None:
    context = mp.get_context("spawn")
    results: SimpleQueue[Any] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/rendezvous"
        mp.spawn(work, (args, address, results), nprocs=args.ranks)
    config = {k: v for k, v in vars(args).items() if k != "name"} | {"backend": "gloo"}
    command = "python -m benchmarks.world_batch " + " ".join(sys.argv[1:])
    measure.write(args.name, command.strip(), config, results.get())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--samples", type=int, nargs="+", default=[48, 192, 1024, 4096])
    parser.add_argument("--dim", type=int, default=DEFAULT_DIM)
    parser.add_argument("--name", default="world-batch")
    main(parser.parse_args())
