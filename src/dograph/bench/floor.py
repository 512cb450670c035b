"""The least that each mode can cost beyond a plain step, from the shapes of the layers alone.

Each piece of work (training/step_work.py) takes bytes / bandwidth or FLOPs / rate, whichever is
more, at rates measured on this device; nothing is launched, nothing waits, the weights themselves
cost nothing. A mode whose extra time is near its floor has nothing left to gain.
"""

from collections.abc import Iterable

from dograph.train.step_work import Work


def floor_ms(
    work: Iterable[Work], bytes_per_second: float, flops_per_second: float
) -> dict[str, float]:
    """Milliseconds by what they go to, and their sum."""
    total: dict[str, float] = {}
    for piece in work:
        seconds = max(piece.bytes / bytes_per_second, piece.flops / flops_per_second)
        total[piece.what] = total.get(piece.what, 0.0) + 1e3 * seconds
    return total | {"total": sum(total.values())}
