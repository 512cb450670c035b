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


class GroupDROOptions(SourceOptions, owner="group-dro"):
    """The authors' options under their names."""

    sampling: Literal["uniform", "natural"] = "uniform"
    eta: float = Field(0.01, ge=0)
    adjustment: float = Field(0.0, ge=0)  # C


class GroupDRO(SourceMixer):
    """Raise the weight of sources with a high loss.

    q_g <- q_g exp(eta (l_g + C / sqrt(n_g))), normalized, with l_g the mean loss of the source's
    samples in the world batch and n_g its training tokens. A source that is absent keeps q_g; in
    the authors' code its loss is 0, so that it loses weight because it was not drawn.

    A sample of source g weighs q_g / (its samples in the batch), divided by the sum over the
    sources present; the authors' sum is below 1 if a source is absent.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss", "source"})
    option_type = GroupDROOptions
    options: GroupDROOptions

    def weigh(self, signals: Signals) -> Tensor:
        loss_B: Tensor = self._require(signals, "loss_B")
        own_BS = self._ready(signals)
        loss_S, count_S = means_by_source(loss_B, own_BS), own_BS.sum(dim=0)
        finite, drawn_S = all_finite(loss_B), count_S > 0
        size_term: Tensor | float = 0.0  # small sources are overfitted sooner
        if self.options.adjustment:
            size_term = self.options.adjustment / self.known_token_S("mixer.adjustment").sqrt()
        score_S = torch.where(drawn_S, loss_S + size_term, 0.0)
        # The sources that were drawn divide their total among them: the others keep theirs.
        raised_S = self.weight_S * (self.options.eta * (score_S - score_S.max())).exp()
        held = torch.where(drawn_S, self.weight_S, 0.0).sum()
        new_S = torch.where(drawn_S, raised_S, 0.0)
        self.update(torch.where(drawn_S, new_S * held / new_S.sum(), self.weight_S), finite)
        each_S = self.weight_S / count_S.clamp_min(1)
        return self.share_out(each_S, own_BS, finite, loss_B, loss_nats=loss_S)
