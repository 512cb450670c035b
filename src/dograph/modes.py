"""The choices that a sketch leaves: modes, projections, size. No torch, for configurations.

What each mode does is told in `dograph.sketch.sketcher`, what each projection is in
`dograph.sketch.projection`.
"""

from typing import Literal

Mode = Literal["full", "twopass", "topdown", "head", "exact", "reference"]
MODES: tuple[Mode, ...] = ("full", "twopass", "topdown", "head", "exact", "reference")
CUTTING: tuple[Mode, ...] = ("topdown", "head")  # with a cut, below which backward is the stock one
EXPLICIT: tuple[Mode, ...] = ("exact", "reference")  # that hold per-sample gradients in full
DETACHING: tuple[Mode, ...] = ("full", "exact")  # whose taps take every parameter out of the graph
# Where the sketch may leave parameters out, for their gradients are not made from its halves.
SPARING: tuple[Mode, ...] = ("twopass", "head", "reference")
# What waits for weights is the graph of (nearly) the whole model: too much for many micro-batches.
GRAPH_HOLDING: tuple[Mode, ...] = ("twopass", "head")
# Whose gradient is a backward through the wrapper, where parameters lie in shards (FSDP2).
SHARDABLE: tuple[Mode, ...] = ("twopass", "head")

Kind = Literal["rademacher", "two-sided", "gaussian", "none"]
KINDS: tuple[Kind, ...] = ("rademacher", "two-sided", "gaussian", "none")
TWO_SIDED: tuple[Kind, ...] = ("rademacher", "two-sided")  # the kinds that taps can take

# The same random matrices always, new ones every step, or new ones every so many steps.
Refresh = int | Literal["never", "step"]

DEFAULT_DIM = 5120  # numbers in a sketch
