"""Tiny decoders whose layers see inputs of other shapes than (B, T, D).

Shapes: B samples, T tokens, N = B T, D width, H heads, W windows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_zoo import HEADS, LENGTH, WIDTH, Block, Decoder


class FeedForward(nn.Module):
    """A norm and two layers, on whatever leading axes."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.down(F.gelu(self.up(self.norm(value))))
        return out


class WithMiddle(Decoder):
    """Something between the blocks and the output layer, in `middle`."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.middle = FeedForward(width)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        return self.through_middle(super().through_blocks(hidden_BTD))

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return self.middle(hidden_BTD)  # type: ignore[no-any-return]


class HeadsOfEach(WithMiddle):
    """(B, T, H, size)."""

    def __init__(self) -> None:
        super().__init__(WIDTH // HEADS)

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value = hidden_BTD.unflatten(-1, (HEADS, WIDTH // HEADS))
        return self.middle(value).flatten(2)  # type: ignore[no-any-return]


class HeadsBeforeTokens(WithMiddle):
    """(B, H, T, size)."""

    def __init__(self) -> None:
        super().__init__(WIDTH // HEADS)

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value = hidden_BTD.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
        return self.middle(value).transpose(1, 2).flatten(2)  # type: ignore[no-any-return]


class TokenFlat(WithMiddle):
    """(B T, D)."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return self.middle(hidden_BTD.reshape(-1, WIDTH)).view_as(hidden_BTD)  # type: ignore[no-any-return]


class OneOfEach(WithMiddle):
    """(B, D): a summary of each sample, added to every token after."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD + self.middle(hidden_BTD[:, 0])[:, None]  # type: ignore[no-any-return]


class EveryOther(WithMiddle):
    """(B, T / 2, D)."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value = self.middle(hidden_BTD[:, ::2])
        return hidden_BTD + value.repeat_interleave(2, dim=1)[:, : hidden_BTD.shape[1]]  # type: ignore[no-any-return]


class FlatTimeFirst(WithMiddle):
    """(T B, D): as many rows as (B T, D), in another order."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value_TBD = hidden_BTD.transpose(0, 1)
        return self.middle(value_TBD.reshape(-1, WIDTH)).view_as(value_TBD).transpose(0, 1)  # type: ignore[no-any-return]


class SortedTokens(WithMiddle):
    """(B T, D) sorted by what a router says, as grouped experts do."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value_ND = hidden_BTD.flatten(0, 1)
        order_N = value_ND[:, 0].detach().argsort()
        back_N = order_N.argsort()
        return self.middle(value_ND[order_N])[back_N].view_as(hidden_BTD)  # type: ignore[no-any-return]


class SortedSamples(WithMiddle):
    """(B, T, D), the samples in another order."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        order_B = hidden_BTD[:, 0, 0].detach().argsort()
        return self.middle(hidden_BTD[order_B])[order_B.argsort()]  # type: ignore[no-any-return]


class SomeTokens(WithMiddle):
    """(n, D): the tokens that a router sends here, of all samples."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        chosen_BT = hidden_BTD[..., 0].detach() > 0
        hidden_BTD = hidden_BTD.clone()
        hidden_BTD[chosen_BT] = self.middle(hidden_BTD[chosen_BT])
        return hidden_BTD


class Windows(WithMiddle):
    """(B W, T / W, D)."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        value = hidden_BTD.unflatten(1, (2, -1)).flatten(0, 1)
        return self.middle(value).view_as(hidden_BTD)  # type: ignore[no-any-return]


class OfPositions(WithMiddle):
    """(T, D): layers over fixed features of positions, the same for every sample."""

    def features(self, length: int) -> Tensor:
        angle_TD = torch.outer(torch.arange(length) + 1.0, torch.arange(WIDTH) + 1.0)
        return angle_TD.sin().to(self.head.weight.dtype)

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD + self.middle(self.features(hidden_BTD.shape[1]))  # type: ignore[no-any-return]


class OfPositionsOnce(OfPositions):
    """(1, T, D)."""

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD + self.middle(self.features(hidden_BTD.shape[1])[None])  # type: ignore[no-any-return]


class PositionsUnsqueezed(Decoder):
    """Positions looked up once and given an axis of samples after."""

    def embedded(self, token_BT: Tensor) -> Tensor:
        place_TD = self.position(torch.arange(token_BT.shape[1]))
        out: Tensor = self.token(token_BT) + place_TD.unsqueeze(0)
        return out


class PositionsRepeated(Decoder):
    """Positions looked up once and repeated for every sample."""

    def embedded(self, token_BT: Tensor) -> Tensor:
        place_TD = self.position(torch.arange(token_BT.shape[1]))
        out: Tensor = self.token(token_BT) + place_TD.repeat(len(token_BT), 1, 1)
        return out


class PositionsByHead(Decoder):
    """Positions looked up once, (T,), for attention: their output is read as (T, H)."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Embedding(LENGTH, HEADS)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        length = hidden_BTD.shape[1]
        slope_TH = self.slope(torch.arange(length))
        causal_TT = torch.full((length, length), -torch.inf).triu(1).to(hidden_BTD.dtype)
        mask_HTT = slope_TH.T[:, None, :] + causal_TT
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, mask_HTT[None])
        return hidden_BTD


class PositionsOnce(Decoder):
    """Position indices (1, T), as nanoGPT's early versions and Hugging Face have them."""

    def embedded(self, token_BT: Tensor) -> Tensor:
        place_1T = torch.arange(token_BT.shape[1])[None]
        out: Tensor = self.token(token_BT) + self.position(place_1T)
        return out


class PositionsBackwards(Decoder):
    """Position indices (T,) at any order, with one that repeats."""

    def embedded(self, token_BT: Tensor) -> Tensor:
        place_T = torch.arange(token_BT.shape[1]).flip(0).clamp_min(1) % LENGTH
        out: Tensor = self.token(token_BT) + self.position(place_T)
        return out


class TimeFirstLater(Decoder):
    """Turns its feed-forward layers to (T, B, D) when `turns` is set."""

    turns = False

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TurningBlock(self) for _ in range(2))


class TurningBlock(Block):
    def __init__(self, owner: TimeFirstLater) -> None:
        super().__init__()
        self.owner = [owner]  # in a list, so that it is no child

    def forward(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden_BTD = hidden_BTD + self.attention(self.before(hidden_BTD), mask)
        value = self.between(hidden_BTD)
        value = value.transpose(0, 1) if self.owner[0].turns else value
        value = self.down(F.gelu(self.up(value)))
        out: Tensor = hidden_BTD + (value.transpose(0, 1) if self.owner[0].turns else value)
        return out
