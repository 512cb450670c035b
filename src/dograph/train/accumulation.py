"""Picks the gradient-accumulation strategy of a run.

Weights need the whole batch, but memory may not hold it:

    strategy    where                                  what is done
    keep        one micro-batch, or accumulation=keep  forward all, weigh, then the gradients from
                                                       the activations that were held
    ahead       the mixer needs nothing of a forward   weigh, then forward and backward
    two_sweeps  several micro-batches                  an extra forward that holds nothing, then as
                                                       ahead
    lagged      several, and accumulation=lagged       one by one: forward, weigh by what was known
                                                       before the step, backward

A pure function of the configuration and of what the mixer needs, so that what a step does, and
what it is said to cost (train/forecast.py), is decided once.
"""

from collections.abc import Set
from typing import Literal

from dograph.config import RunConfig

Strategy = Literal["keep", "ahead", "two_sweeps", "lagged"]
OF_A_FORWARD = frozenset({"loss", "reference_loss", "sketch"})  # needs that only a forward answers


def strategy_of(config: RunConfig, needs: Set[str], num_ranks: int = 1) -> Strategy:
    """How weights and gradients come together; every rank must answer alike."""
    if not needs & OF_A_FORWARD:
        return "ahead"
    most = -(-config.train.batch_size // num_ranks)  # samples of the first rank
    if most <= (config.train.micro_batch_size or most):
        return "keep"
    return config.sketch.accumulation if "sketch" in needs else "two_sweeps"
