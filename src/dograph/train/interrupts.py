"""Ctrl-C and SIGTERM: finish the step, save, leave. A second one leaves at once."""

import signal
from types import FrameType
from typing import Self


class Interrupts:
    """Remembers the signal that asked the run to stop; 0 while none did."""

    def __init__(self) -> None:
        self.asked = 0
        self._old: dict[int, signal.Handlers] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number
