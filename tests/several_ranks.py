"""Ranks for tests: processes that work together over gloo, and what each of them found."""

import multiprocessing
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dograph.train.distributed import World

SECONDS = 200
# One process imports these and forks the ranks: importing takes longer than their work.
IMPORTS = ["torch", "torch.distributed.fsdp", "transformers.models.gpt2.modeling_gpt2"]


def on_ranks(size, work, *arguments, device="cpu", backend="gloo"):
    """What `work(world, *arguments)` returns on each of `size` ranks, all on one device.

    `work` must be found by name in a module on the path, so it cannot live in a test file.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTS, "dograph.train.step"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank, args=(rank, size, folder, work, arguments, device, backend)
            )
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            _wait(ranks, Path(folder))
        finally:
            for process in ranks:
                process.kill()
                process.join()
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _wait(ranks, folder):
    """Until all have ended well; the first that failed is told, as the others may wait for it."""
    for _ in range(SECONDS * 20):
        codes = [process.exitcode for process in ranks]
        failed = sorted(folder.glob("*.failed"))
        assert not failed, "\n".join(path.read_text() for path in failed)
        assert not any(codes), f"exit codes {codes}"
        if None not in codes:
            return
        ranks[codes.index(None)].join(0.05)
    raise TimeoutError(f"{len(ranks)} ranks are still at work after {SECONDS} s")


def _rank(rank, size, folder, work, arguments, device, backend):
    torch.set_num_threads(1)
    place = Path(folder)
    dist.init_process_group(
        backend,
        init_method=f"file://{place / 'meeting'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=SECONDS),
    )
    try:
        found = work(World(rank=rank, size=size, device=torch.device(device)), *arguments)
        torch.save(found, place / f"{rank}.pt")
    except BaseException:
        (place / f"{rank}.tmp").write_text(f"rank {rank}: {traceback.format_exc()}")
        (place / f"{rank}.tmp").rename(place / f"{rank}.failed")
        raise
    dist.destroy_process_group()
