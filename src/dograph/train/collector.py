"""Python's garbage collector, kept from looking through what lives as long as the run.

Models, compiled graphs and their guards are hundreds of thousands of objects, and a collection
that walks through them stops the host for tens of milliseconds in a step.
"""

import gc
from typing import Self

SETTLED_AFTER = 3  # steps, by which everything is built and compiled


class Collector:
    """Sets aside, once, all that there is; what comes later is collected as ever."""

    def __init__(self) -> None:
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def step(self) -> None:
        self.steps += 1
        if self.steps == SETTLED_AFTER:
            gc.collect()
            gc.freeze()

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
