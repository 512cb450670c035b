"""CUDA graphs of a micro-batch: the GPU runs a step without waiting for Python.

Launching a step's thousand kernels takes Python nearly as long as a fast GPU takes to run them. So
on one GPU the forward with its sketch is recorded once as a CUDA graph, and so is the backward that
waits for the weights; from then on each is one launch. Weighing, clipping and the update are few
kernels and run as usual. Numbers are bitwise those of the step without graphs.

Shapes: b samples of a micro-batch, T tokens.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dograph.sketch.gradients import MicroBatchResult

WARM_UP = 3  # calls as usual: kernels are compiled, the first record is checked
MOST = 8  # graphs: other shapes run as usual

Compute = Callable[[ExitStack, Tensor], MicroBatchResult]
logger = logging.getLogger("dograph.train")


class StepGraphs:
    """The graphs of a run, by shape of the micro-batch and by what is computed."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.stream = parameters, torch.cuda.Stream()
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.calls: Counter[Hashable] = Counter()
        self.captured: dict[Hashable, CapturedMicroBatch] = {}
        self.lasting = {id(None)}  # of gradients that a graph writes; None: there is none yet
        self.replays = 0
        self.works = True  # until a capture fails

    def run(
        self, taps: ExitStack, token_bT: Tensor, kind: Hashable, compute: Compute
    ) -> MicroBatchResult:
        """What `compute` gives, by a graph once there is one.

        `kind` tells apart what is computed of the same tokens.
        """
        held = id(first_gradient(self.parameters))  # of micro-batches before: this one's is added
        key = (tuple(token_bT.shape), kind, held)
        if (known := self.captured.get(key)) is not None:
            return known.replay(token_bT)
        if not self.works or held not in self.lasting or len(self.captured) == MOST:
            return compute(taps, token_bT)
        self.calls[key] += 1
        if self.calls[key] <= WARM_UP:
            return compute(taps, token_bT)
        try:
            self.captured[key] = CapturedMicroBatch(self, token_bT, compute)
        except RuntimeError as error:
            self.works = False
            reason = str(error.__context__ or error).splitlines()[0]  # what went wrong first
            logger.warning("steps are not replayed as CUDA graphs, and take longer: %s", reason)
        # Outside the handler, where the error would hold the memory of the failed capture.
        return self.captured[key].replay(token_bT) if self.works else compute(taps, token_bT)


class CapturedMicroBatch:
    """A forward and the backward that waits for weights, recorded without being run."""

    def __init__(self, graphs: StepGraphs, token_bT: Tensor, compute: Compute) -> None:
        self.graphs, self.token_bT = graphs, token_bT.clone()
        self.weight_b = torch.zeros(len(token_bT), device=token_bT.device)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads, which read batches ahead, may go on meanwhile.
        how: dict[str, Any] = {"pool": graphs.pool, "stream": graphs.stream}
        how |= {"capture_error_mode": "thread_local"}
        before, drawn = [p.grad for p in graphs.parameters], _host_draws()
        try:
            with torch.random.fork_rng(devices=[]), ExitStack() as taps:
                with torch.cuda.graph(self.forward, **how):
                    self.result = compute(taps, self.token_bT)
                if has_backward := self.result.loss_B.requires_grad or self.result.pending:
                    with torch.cuda.graph(self.backward, **how):
                        self.result.backward(self.weight_b)
                if _host_draws() != drawn:
                    raise RuntimeError("the model draws random numbers on the host")
            self.gradients = [p.grad for p in graphs.parameters] if has_backward else None
            graphs.lasting.add(id(first_gradient(graphs.parameters)))
        finally:
            for parameter, gradient in zip(graphs.parameters, before, strict=True):
                parameter.grad = gradient
        self.result = self.result.without_gradient()

    def replay(self, token_bT: Tensor) -> MicroBatchResult:
        """The results of these tokens, in tensors of their own."""
        self.token_bT.copy_(token_bT)
        self.forward.replay()
        values = {f.name: getattr(self.result, f.name) for f in fields(self.result)}
        copies: dict[str, Any] = {n: x.clone() for n, x in values.items() if isinstance(x, Tensor)}
        self.graphs.replays += 1
        fill = partial(self.fill, self.graphs.replays)
        return MicroBatchResult(**copies, pending=None if self.gradients is None else fill)

    def fill(self, number: int, weight_b: Tensor) -> None:
        """The gradient, or its sum with that of the micro-batches before."""
        assert self.gradients is not None
        assert number == self.graphs.replays, "another forward has taken the place of this one"
        self.weight_b.copy_(weight_b)
        self.backward.replay()
        for parameter, gradient in zip(self.graphs.parameters, self.gradients, strict=True):
            parameter.grad = gradient


def first_gradient(parameters: Iterable[nn.Parameter]) -> Tensor | None:
    return next((p.grad for p in parameters if p.grad is not None), None)


def _host_draws() -> tuple[Any, ...]:
    """The states of the host's random number generators."""
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
