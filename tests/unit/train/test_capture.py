"""When steps are captured, and what follows if they cannot be; without a GPU."""

import weakref
from contextlib import ExitStack

import torch

from dograph.sketch.gradients import MicroBatchResult
from dograph.train import capture


def test_a_failed_capture_gives_its_memory_back_before_the_step_is_made(monkeypatch, caplog):
    """It may have failed for want of memory, which the step as usual then needs."""
    held = []

    class OutOfMemory:
        def __init__(self, graphs, token_bT, compute):
            self.result = compute(None, token_bT)
            held.append(weakref.ref(self.result.loss_B))
            raise torch.OutOfMemoryError("CUDA out of memory")

    def compute(taps, token_bT):
        assert all(reference() is None for reference in held)
        return MicroBatchResult(token_bT.sum(dim=1).float())

    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(capture, "CapturedMicroBatch", OutOfMemory)
    graphs = capture.StepGraphs([])
    for _ in range(capture.WARM_UP + 2):
        result = graphs.run(ExitStack(), torch.ones(2, 3), "kind", compute)
        assert result.loss_B.tolist() == [3.0, 3.0]
    assert len(held) == 1
    assert "CUDA out of memory" in caplog.text
