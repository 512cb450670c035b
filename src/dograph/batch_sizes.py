"""The batch size of every step: fixed, or a schedule by tokens.

The schedule [[0, 12], [2000000, 24]] gives a step 24 samples once 2M tokens were drawn before it.
Whatever the sizes, a run draws train.steps x reference x data.seq_len tokens, so the number of its
steps follows from them; the last step has the samples that are left. `reference` is the batch size
that the settings are for. A step with B samples has the learning rate of its tokens times
sqrt(B / reference), and beta2^(B / reference), so moments average over equally many tokens.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter

from dograph.errors import shortened

ENDLESS = 2**62  # steps, or the number of a step that no run reaches
ALWAYS = ((ENDLESS, ENDLESS),)
LEAST_PROPOSED = 4  # samples
Lengths = Sequence[tuple[int, int]]
_PAIRS = TypeAdapter(list[tuple[int, int]])


def _checked(given: Any) -> int | list[tuple[int, int]]:
    """A batch size or a schedule, in whole numbers."""
    is_list = isinstance(given, list | tuple)
    try:
        pairs = _PAIRS.validate_python(given if is_list else [(0, given)])
        tokens, sizes = zip(*pairs, strict=True)
        if tokens[0] == 0 and sorted(set(tokens)) == list(tokens) and min(sizes) > 0:
            return pairs if is_list else pairs[0][1]
    except ValueError:
        pass
    raise ValueError(
        f"got {shortened(repr(given))}; give a whole number of at least 1, or a schedule of "
        "[tokens, size] with rising tokens from 0, as in [[0, 12], [2e6, 24]]"
    )


Schedule = Annotated[int | list[tuple[int, int]], BeforeValidator(_checked)]


class BatchPhase(NamedTuple):
    """Steps of one size: the first of them, the samples drawn before it, how many there are."""

    step: int
    drawn: int
    size: int
    steps: int


class BatchSizes:
    """The size of every step. Steps count from 0; sizes are of the world batch.

    `lengths`: values of train.steps, each after the step until which it held.
    """

    def __init__(
        self, sizes: Schedule, seq_len: int, reference: int | None = None, lengths: Lengths = ALWAYS
    ) -> None:
        entries = [(0, sizes)] if isinstance(sizes, int) else sizes
        first_samples = [-(-tokens // seq_len) for tokens, _ in entries] + [math.inf]
        self.reference = reference or entries[0][1]
        self.phases: list[BatchPhase] = []
        self.scheduled: set[int] = set()  # sizes, without that of a smaller last step
        self.ends: set[int] = set()  # steps after which the run was complete, perhaps for a time
        step = drawn = 0
        for until, length in lengths:
            total = length * self.reference
            while drawn < total and step < until:
                entry = bisect_right(first_samples, drawn) - 1
                self.scheduled.add(entries[entry][1])
                size, end = min(entries[entry][1], total - drawn), first_samples[entry + 1]
                number = min((total - drawn) // size, until - step)
                if end < total:
                    number = min(number, math.ceil((end - drawn) / size))
                self.phases.append(BatchPhase(step, drawn, size, number))
                step, drawn = step + number, drawn + number * size
            if drawn >= total:
                self.ends.add(step)
        self.steps, self.samples = step, drawn

    def phase(self, step: int) -> BatchPhase:
        """The phase of a step; one after the last step is the last phase."""
        return self.phases[bisect_right(self.phases, step, key=lambda own: own.step) - 1]

    def size(self, step: int) -> int:
        return self.phase(step).size

    def drawn(self, step: int) -> int:
        """Samples drawn before `step`."""
        own = self.phase(step)
        return own.drawn + (step - own.step) * own.size

    def counted(self, step: int) -> float:
        """The same in steps of the reference size."""
        return self.drawn(step) / self.reference

    def step_at(self, count: int) -> int:
        """The first step that begins after the samples of `count` steps of the reference size."""
        samples = count * self.reference
        own = self.phases[bisect_right(self.phases, samples, key=lambda own: own.drawn) - 1]
        return own.step - (own.drawn - samples) // own.size

    @property
    def largest(self) -> int:
        return max(own.size for own in self.phases)

    def __str__(self) -> str:
        """As in "16", or "8 to 64"."""
        return " to ".join(map(str, sorted({min(self.scheduled), self.largest})))


def forked(old: Schedule, new: Schedule, tokens: int) -> Schedule:
    """The schedule of a fork after `tokens` tokens: those drawn by the old one, then the new."""
    before, after = ([(0, own)] if isinstance(own, int) else own for own in (old, new))
    now = [size for first, size in after if first <= tokens][-1]
    past = [(first, size) for first, size in before if first < tokens]
    return [*past, (tokens, now), *(own for own in after if own[0] > tokens)]


def proposed(points: Iterable[tuple[float, float]]) -> list[tuple[int, int]]:
    """A schedule from the (tokens seen, noise scale in samples) of a run; empty without a scale.

    Sizes are the powers of two nearest to a quarter of the scale, at least `LEAST_PROPOSED`. Scales
    are first made to rise with the tokens, by isotonic regression of their logarithms, so that one
    noisy value changes little.
    """
    from scipy.optimize import isotonic_regression

    known = sorted((tokens, math.log2(scale)) for tokens, scale in points if scale > 0)
    rising = isotonic_regression([log_scale for _, log_scale in known]).x if known else []
    schedule: list[tuple[int, int]] = []
    for (tokens, _), log_scale in zip(known, rising, strict=True):
        size = max(2 ** round(float(log_scale) - 2), LEAST_PROPOSED)
        if not schedule or size > schedule[-1][1]:
            schedule.append((int(tokens) if schedule else 0, int(size)))
    return schedule
