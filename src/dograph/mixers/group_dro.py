"""Group DRO over sources, online (Sagawa et al., 2020).

Shapes: B samples of the world batch, S sources.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.domains.partition import all_finite
from dograph.mixers.source_weights import SourceMixer, SourceOptions, means_by_source
from dograph.types import Signals


class GroupDROOptions(SourceOptions):
    """The authors' options under their names, except `mode: cvar`."""

    owner: ClassVar[str] = "group-dro"

    sampling: Literal["uniform", "natural"] = "uniform"
    mode: Literal["online", "cvar"] = "online"
    eta: float = Field(0.01, ge=0)
    adjustment: float = Field(0.0, ge=0)  # C
    normalize_losses: bool = False  # divide the losses by their sum first
    absent: Literal["skip", "zero"] = "skip"
    alpha: float = Field(0.2, gt=0, le=1)
    gamma: float = Field(0.1, gt=0, le=1)


class GroupDRO(SourceMixer):
    """Raise the weight of sources with a high loss.

    Online: q_g <- q_g exp(eta (l_g + C / sqrt(n_g))), normalized, with l_g the mean loss of the
    source's samples in the world batch and n_g its training tokens. With `mode: cvar` (the
    authors' "btl") the worst sources get all the weight: those with the highest moving average of
    the loss (rate `gamma`), as many as make up a share `alpha` of the corpus.

    A sample of source g weighs q_g / (its samples in the batch), divided by the sum over the
    sources present; the authors' sum is below 1 if a source is absent. `absent: skip` leaves q_g
    of an absent source unchanged; `zero`, as in the authors' code, takes its loss as 0, so that it
    loses weight because it was not drawn.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss", "source"})
    option_type = GroupDROOptions
    kept: ClassVar[dict[str, str]] = {"recent": "recent_S", "seen": "seen_S"}
    options: GroupDROOptions
    recent_S: Tensor | None = None  # moving average of the losses
    seen_S: Tensor | None = None  # 1.0 where that has begun

    def weigh(self, signals: Signals) -> Tensor:
        loss_B = self._require(signals, "loss_B")
        own_BS = self._ready(signals)
        loss_S, count_S = means_by_source(loss_B, own_BS), own_BS.sum(dim=0)
        finite = all_finite(loss_B)
        size_term: Tensor | float = 0.0  # small sources are overfitted sooner
        if self.options.adjustment:
            size_term = self.options.adjustment / self.known_token_S("mixer.adjustment").sqrt()
        if self.options.mode == "online":
            weight_S = self._online(loss_S + size_term, count_S > 0)
        else:
            weight_S = self._worst(loss_S, size_term, finite & (count_S > 0))
        self.update(weight_S, finite)
        each_S = self.weight_S / count_S.clamp_min(1)
        return self.share_out(each_S, own_BS, finite, loss_B, loss_nats=loss_S)

    def _online(self, score_S: Tensor, drawn_S: Tensor) -> Tensor:
        """One step of exponentiated gradient ascent on q."""
        skips, eta = self.options.absent == "skip", self.options.eta
        if skips:
            score_S = torch.where(drawn_S, score_S, 0.0)
        if self.options.normalize_losses:
            score_S = score_S / score_S.sum().clamp_min(1e-12)
        if not skips:
            return torch.softmax(self.weight_S.log() + eta * score_S, dim=0)
        # The sources that were drawn divide their total among them: the others keep theirs.
        raised_S = self.weight_S * (eta * (score_S - score_S.max())).exp()
        held = torch.where(drawn_S, self.weight_S, 0.0).sum()
        new = torch.where(drawn_S, raised_S, 0.0)
        return torch.where(drawn_S, new * held / new.sum(), self.weight_S)

    def _worst(self, loss_S: Tensor, size_term: Tensor | float, drawn_S: Tensor) -> Tensor:
        """Fill the share alpha from the worst source down; ties go to the lowest index."""
        if self.recent_S is None or self.seen_S is None:
            self.recent_S, self.seen_S = torch.zeros_like(loss_S), torch.zeros_like(loss_S)
        recent_S, seen_S = self.recent_S.to(loss_S.device), self.seen_S.to(loss_S.device)
        rate_S = torch.where(seen_S > 0, self.options.gamma, 1.0)
        moved_S = recent_S + rate_S * (loss_S - recent_S)
        self.recent_S = torch.where(drawn_S, moved_S, recent_S)
        self.seen_S = torch.where(drawn_S, 1.0, seen_S)
        score_S = self.recent_S + size_term
        token_S = torch.ones_like(score_S) if self.token_S is None else self.token_S
        share_S, alpha = token_S / token_S.sum(), self.options.alpha
        index_S = torch.arange(len(score_S), device=score_S.device)
        tied_SS = (score_S[:, None] == score_S) & (index_S[:, None] > index_S)
        worse_SS = ((score_S[:, None] < score_S) | tied_SS).double()  # column before row
        room_S = (alpha - worse_SS @ share_S).clamp_min(0)
        return torch.minimum(share_S, room_S) / alpha
