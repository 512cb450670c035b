"""When a micro-batch is replayed as a CUDA graph, and what is held; the graphs record nothing here.

Numbers of real graphs are in tests/integration/test_cuda_graphs.py.

Shapes: b samples of a micro-batch, T tokens.
"""

import random
import weakref
from contextlib import ExitStack, nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from dograph.sketch.gradients import MicroBatchResult
from dograph.train import capture
from dograph.train.capture import MOST, WARM_UP, StepGraphs


class Recorded:
    """Stands for a CUDA graph: counts its replays."""

    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


class Loss:
    """token_bT -> loss_b, the tokens' sum times a parameter; counts its calls."""

    def __init__(self, also=lambda: None):
        self.weight, self.calls, self.also = nn.Parameter(torch.tensor(2.0)), 0, also

    def __call__(self, taps, token_bT):
        self.calls += 1
        self.also()
        return MicroBatchResult(self.weight * token_bT.sum(dim=1))


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **how: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)


def opened(loss=None):
    loss = loss or Loss()
    return loss, StepGraphs([loss.weight])


def run(graphs, loss, token_bT=None, kind="kept", times=1):
    """The result of the last of several calls."""
    token_bT = torch.ones(2, 3) if token_bT is None else token_bT
    for _ in range(times):
        result = graphs.run(ExitStack(), token_bT, kind, loss)
    return result


def test_a_shape_and_a_kind_are_captured_after_their_first_calls():
    loss, graphs = opened()
    run(graphs, loss, times=WARM_UP)
    assert (loss.calls, len(graphs.captured)) == (WARM_UP, 0)
    run(graphs, loss, times=3)
    assert (loss.calls, len(graphs.captured), graphs.replays) == (WARM_UP + 1, 1, 3)
    for other in ({"token_bT": torch.ones(1, 3)}, {"kind": "not kept"}):
        before, number = loss.calls, len(graphs.captured)
        run(graphs, loss, times=WARM_UP, **other)
        assert (loss.calls, len(graphs.captured)) == (before + WARM_UP, number)
        run(graphs, loss, times=2, **other)
        assert (loss.calls, len(graphs.captured)) == (before + WARM_UP + 1, number + 1)


def test_only_so_many_are_held():
    loss, graphs = opened()
    for size in range(1, MOST + 3):
        run(graphs, loss, torch.ones(size, 3), times=WARM_UP + 2)
    assert sorted(shape[0] for shape, *_ in graphs.captured) == list(range(1, MOST + 1))


def test_a_replay_reads_its_own_tokens_and_weights_and_gives_tensors_of_its_own():
    loss, graphs = opened()
    run(graphs, loss, times=WARM_UP + 1)
    assert loss.weight.grad is None  # what the capture left there is not of any micro-batch
    (graph,) = graphs.captured.values()
    token_bT = torch.arange(6.0).view(2, 3)
    first, second = run(graphs, loss, token_bT), run(graphs, loss, token_bT)
    assert torch.equal(graph.token_bT, token_bT)
    assert graph.token_bT is not token_bT
    assert len({held.loss_B.data_ptr() for held in (first, second, graph.result)}) == 3
    second.backward(torch.tensor([0.25, 0.75]))
    assert graph.weight_b.tolist() == [0.25, 0.75]
    assert (graph.forward.replays, graph.backward.replays) == (3, 1)
    assert loss.weight.grad is graph.gradients[0]
    with pytest.raises(AssertionError, match="another forward has taken the place"):
        first.backward(torch.tensor([0.5, 0.5]))


def test_a_gradient_that_is_added_to_must_be_one_that_a_graph_writes():
    loss, graphs = opened()
    loss.weight.grad = torch.ones(())  # of a backward as usual: the next step has another one
    run(graphs, loss, times=2 * WARM_UP)
    assert not graphs.captured
    loss.weight.grad = None
    for _ in range(WARM_UP + 2):  # steps of two micro-batches
        for _ in range(2):
            run(graphs, loss).backward(torch.tensor([0.5, 0.5]))
        loss.weight.grad = None
    assert len(graphs.captured) == 1
    for _ in range(WARM_UP):
        for _ in range(2):
            run(graphs, loss).backward(torch.tensor([0.5, 0.5]))
        loss.weight.grad = None
    assert len(graphs.captured) == 2


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, np.random.rand])
def test_what_draws_on_the_host_runs_as_usual(draw, caplog):
    loss, graphs = opened(Loss(also=draw))
    run(graphs, loss, times=WARM_UP + 2)
    assert not graphs.works
    assert not graphs.captured
    assert caplog.text.count("the model draws random numbers on the host") == 1
    assert loss.weight.grad is None


def test_a_capture_that_failed_changes_no_number_and_is_not_tried_again(caplog):
    drawn = []
    loss, graphs = opened(Loss(also=lambda: drawn.append(torch.rand(()).item())))
    torch.manual_seed(0)
    run(graphs, loss, times=WARM_UP + 3)
    torch.manual_seed(0)
    usual = [torch.rand(()).item() for _ in range(WARM_UP + 3)]
    assert loss.calls == WARM_UP + 4
    assert drawn[:WARM_UP] + drawn[WARM_UP + 1 :] == usual  # without those of the capture


def test_the_first_of_two_errors_is_told(monkeypatch, caplog):
    class Broken(nullcontext):
        """As a capture ends after an error inside it: with one of its own."""

        def __exit__(self, *error):
            raise RuntimeError("the capture was invalidated")

    def unfit():
        if loss.calls == WARM_UP + 1:
            raise RuntimeError("this waits for the device\nmore on it")

    loss = Loss(also=unfit)
    graphs = opened(loss)[1]
    loss.weight.grad = before = torch.ones(())
    graphs.lasting.add(id(before))
    monkeypatch.setattr(capture.torch.cuda, "graph", lambda *_, **how: Broken())
    result = run(graphs, loss, times=WARM_UP + 1)
    assert result.loss_B.tolist() == [6.0, 6.0]
    assert loss.weight.grad is before
    assert caplog.messages == [
        "steps are not replayed as CUDA graphs, and take longer: this waits for the device"
    ]


def test_a_failed_capture_gives_its_memory_back_before_the_step_is_made(monkeypatch, caplog):
    """It may have failed for want of memory, which the step as usual then needs."""
    held = []

    class OutOfMemory:
        def __init__(self, graphs, token_bT, compute):
            self.result = compute(None, token_bT)
            held.append(weakref.ref(self.result.loss_B))
            raise torch.OutOfMemoryError("CUDA out of memory")

    def unheld():
        assert all(reference() is None for reference in held)

    monkeypatch.setattr(capture, "CapturedMicroBatch", OutOfMemory)
    loss, graphs = opened(Loss(also=unheld))
    assert run(graphs, loss, times=WARM_UP + 2).loss_B.tolist() == [6.0, 6.0]
    assert len(held) == 1
    assert "CUDA out of memory" in caplog.text
