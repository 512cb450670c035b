"""Forwards, outputs and losses that are arranged in other ways: checkpoints, chunks, several heads.

Shapes: B samples, T tokens, V vocabulary, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import model_kinds as kinds
import model_zoo as zoo
from model_zoo import WIDTH, Decoder, made
from verdicts import EXACT, MODES, MOST_MODES, REFUSED, VOCABULARY, nll, some_tokens, verdict

pytestmark = pytest.mark.slow  # the fast suite has the cases of test_any_model


def checkpointed(kind: type[Decoder]) -> type[Decoder]:
    """Its blocks run again in the backward."""

    class Checkpointed(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.forward = self.again(block)

        def again(self, block: nn.Module) -> Callable[..., Any]:
            def forward(*args: Any) -> Any:
                return checkpoint(type(block).forward, block, *args, use_reentrant=False)

            return forward

    return Checkpointed


class Dropped(kinds.Gains):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def embedded(self, token_BT: Tensor) -> Tensor:
        return self.drop(super().embedded(token_BT))  # type: ignore[no-any-return]


def seeded(model: Any, token_BT: Tensor) -> Tensor:
    torch.manual_seed(3)
    return nll(model, token_BT)


@dataclass
class Outputs:
    logits: Tensor
    hidden: Tensor


class InDataclass(Decoder):
    def forward(self, token_BT: Tensor) -> Outputs:  # type: ignore[override]
        hidden_BTD = self.through_blocks(self.embedded(token_BT))
        return Outputs(self.logits(hidden_BTD), hidden_BTD)


class InNamespace(Decoder):
    def forward(self, token_BT: Tensor) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(logits=super().forward(token_BT), step=3)


class InDict(Decoder):
    def forward(self, token_BT: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"many": [(super().forward(token_BT), None)], "step": 3}


def from_dict(model: Any, token_BT: Tensor) -> Tensor:
    logits_BTV = model(token_BT)["many"][0][0]
    return nll(lambda _: logits_BTV, token_BT)


class WithLoss(nn.Module):
    """The model computes the losses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = kinds.Gains()

    def forward(self, token_BT: Tensor) -> Tensor:
        return nll(self.inner, token_BT)


class TwoHeads(Decoder):
    """Predicts two tokens ahead as well."""

    def __init__(self) -> None:
        super().__init__()
        self.further = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token_BT: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hidden_BTD = self.through_blocks(self.embedded(token_BT))
        return self.logits(hidden_BTD), self.further(hidden_BTD)


def of_two(model: Any, token_BT: Tensor) -> Tensor:
    near_BTV, far_BTV = model(token_BT)
    later_BT = token_BT.roll(1, dims=1)
    return nll(lambda _: near_BTV, token_BT) + 0.5 * nll(lambda _: far_BTV, later_BT)


class InChunks(Decoder):
    """The output layer runs over a few tokens at a time, to save memory."""

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        chunks = [self.head(self.last(chunk)) for chunk in hidden_BTD.split(3, dim=1)]
        return torch.cat(chunks, dim=1)


class LastToken(Decoder):
    """A classifier: one row a sample reaches the output layer."""

    def forward(self, token_BT: Tensor) -> Tensor:
        return self.logits(self.through_blocks(self.embedded(token_BT))[:, -1])


def classified(model: Any, token_BT: Tensor) -> Tensor:
    return F.cross_entropy(model(token_BT), token_BT[:, 0], reduction="none")


class WithUnused(Decoder):
    """A layer and a parameter that never run."""

    def __init__(self) -> None:
        super().__init__()
        self.extra, self.bare = nn.Linear(4, 4), nn.Parameter(torch.ones(3))


class Balanced(Decoder):
    """A loss of the whole batch beside the logits, as routers have it."""

    def forward(self, token_BT: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hidden_BTD = self.through_blocks(self.embedded(token_BT))
        return self.logits(hidden_BTD), hidden_BTD.square().mean()


def balanced(model: Any, token_BT: Tensor) -> Tensor:
    logits_BTV, balance = model(token_BT)
    return nll(lambda _: logits_BTV, token_BT) + 0.1 * balance


class SamplesInChunks(Decoder):
    def logits(self, hidden_BTD: Tensor) -> Tensor:
        return torch.cat([self.head(self.last(part)) for part in hidden_BTD.split(2)])


class Shifted(Decoder):
    """Without the last token of every sample, flat: (B (T - 1), D)."""

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        value_ND = self.last(hidden_BTD)[:, :-1].reshape(-1, WIDTH)
        logits_BTV = self.head(value_ND).view(len(hidden_BTD), -1, VOCABULARY)
        return F.pad(logits_BTV, (0, 0, 0, 1))


def reversed_losses(model: Any, token_BT: Tensor) -> Tensor:
    """Losses in another order than their samples."""
    return nll(model, token_BT).flip(0)


RUN = {
    "checkpoints and gains": (checkpointed(kinds.Gains), nll),
    "checkpoints and a functional tie": (checkpointed(zoo.FunctionalTie), nll),
    "checkpoints and a sum over blocks": (checkpointed(zoo.SumOfBlocks), nll),
    "dropout and gains": (Dropped, seeded),
    "dataclass": (InDataclass, nll),
    "namespace": (InNamespace, nll),
    "dict": (InDict, from_dict),
    "losses in the model": (WithLoss, lambda model, token_BT: model(token_BT)),
    "two heads": (TwoHeads, of_two),
    "head in chunks": (InChunks, nll),
    "last token": (LastToken, classified),
    "unused parameters": (WithUnused, nll),
}
REFUSABLE = {
    "loss of the whole batch": (Balanced, balanced),
    "samples in chunks": (SamplesInChunks, nll),
    "flat without the last token": (Shifted, nll),
    "losses in another order": (Decoder, reversed_losses),
}


@pytest.mark.parametrize("mode", MOST_MODES)
@pytest.mark.parametrize("name", RUN)
def test_exact(name, mode):
    """Two heads, a head that ran in chunks or was not found: mode head may ask for it."""
    build, loss_of = RUN[name]
    with torch.random.fork_rng(devices=[]):
        got = verdict(made(build), mode, loss_of=loss_of, holds_sketch="tie" not in name)
    asked = mode == "head" and "Sketcher(head=" in got.message
    asked = asked or (mode == "topdown" and "checkpoints" in name)
    assert got.kind == EXACT or (got.kind == REFUSED and asked), str(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSABLE)
def test_exact_or_refused(name, mode):
    build, loss_of = REFUSABLE[name]
    got = verdict(made(build), mode, loss_of=loss_of)
    assert got.kind in (EXACT, REFUSED), str(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 2), (3, 3)])
def test_tiny_batches(mode, size):
    got = verdict(made(kinds.NanoGPT), mode, token_BT=some_tokens(*size))
    assert got.kind == EXACT, str(got)
