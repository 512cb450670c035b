"""The most memory that a run held at once."""

import resource
from pathlib import Path

import torch

_SELF = Path("/proc/self")


def reset_peak(device: torch.device) -> None:
    """Count from now on. A worker makes many runs; each should answer for its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (_SELF / "clear_refs").write_text("5")  # the high-water mark falls to what is held now
    except OSError:
        return  # not Linux, or not allowed: the mark of the whole process is what there is


def peak_bytes(device: torch.device) -> int:
    """Allocated on a GPU; resident on a CPU, the program and its libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = (_SELF / "status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
