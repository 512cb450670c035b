"""The proxy run of DoReMi: Group DRO on the excess over a reference (Xie et al., 2023).

Shapes: B samples of the world batch, S sources.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dograph.domains.sharing import all_finite
from dograph.errors import ConfigError
from dograph.mixers.source_weights import SourceMixer, means_by_source, share_out_sources
from dograph.option_checks import require_number, require_one_of
from dograph.types import Signals


class DoReMiProxy(SourceMixer):
    """Raise the weight of sources on which the model is still worse than a reference.

        s_d    = mean over the source's tokens of max(l_t - ref_t, 0)    (as before if absent)
        log a <- log a + eta s; a <- softmax; a <- (1 - c) a + c / S

    The result is the average of a over the steps, a_0 among them. A token of source d counts
    a_d / p_d (p: the sampling shares) in the same step, divided by the sum over all tokens
    (`normaliser: global`, the authors' code), or a_d / (its tokens in the batch), which is the
    paper's mean by source (`per_domain`). A source not seen yet has s_d = log(vocabulary).

    `excess: domain` clips the difference of the source's mean losses instead of the tokens' (the
    DoGE and Sow code bases, with eta 0.1 and c 0).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss", "reference_loss", "source"})

    def __init__(
        self,
        reference: str | None = None,
        *,
        eta: float = 1.0,
        smoothing: float = 1e-3,
        normaliser: str = "global",
        excess: str = "token",
        sampling: str = "uniform",
        sources: Mapping[str, float] | Sequence[str] | None = None,
    ) -> None:
        require_number("mixer.eta", eta, above=0)
        require_number("mixer.smoothing", smoothing, least=0, most=1)
        require_one_of("mixer.normaliser", normaliser, ("global", "per_domain"))
        require_one_of("mixer.excess", excess, ("token", "domain"))
        super().__init__(sources, sampling, counts_first=True)
        self.reference, self.eta, self.smoothing = reference, eta, smoothing
        self.normaliser, self.excess = normaliser, excess
        self.excess_S: Tensor | None = None  # s_d, as last seen

    def weigh(self, signals: Signals) -> Tensor:
        loss_B = self._require("loss_B", signals.loss_B)
        own_BS = self._ready(signals)
        count_S = own_BS.sum(dim=0)
        finite, excess_S = self._excess(signals, own_BS)
        log_S = self.learnt.weight_S.log() + self.eta * excess_S
        weight_S = torch.softmax(log_S, dim=0)
        weight_S = (1 - self.smoothing) * weight_S + self.smoothing / len(weight_S)
        self.learnt.update(weight_S, finite)
        if self.normaliser == "global":
            each_S = self.learnt.weight_S / self._sampling_S()
        else:
            each_S = self.learnt.weight_S / count_S.clamp_min(1)
        self._report = self.learnt.report() | self.learnt.by_name("excess_nats", excess_S)
        return share_out_sources(each_S, own_BS, finite, loss_B)

    def _excess(self, signals: Signals, own_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Whether all losses are finite, and s_S with this batch taken in."""
        loss_B = self._require("loss_B", signals.loss_B)
        if self.excess == "token":
            excess_B = self._require("excess_loss_B", signals.excess_loss_B)
            finite = all_finite(loss_B, excess_B)
            mean_S = means_by_source(excess_B, own_BS)
        else:
            reference_B = self._require("reference_loss_B", signals.reference_loss_B)
            finite = all_finite(loss_B, reference_B)
            mean_S = means_by_source(loss_B - reference_B, own_BS).clamp_min(0)
        if self.excess_S is None:
            if signals.vocab_size is None:
                raise ConfigError(
                    "DoReMiProxy starts from the logarithm of the vocabulary; fill "
                    "Signals.vocab_size"
                )
            self.excess_S = torch.full_like(mean_S, math.log(signals.vocab_size))
        old_S = self.excess_S.to(mean_S.device)
        self.excess_S = torch.where(finite & (own_BS.sum(dim=0) > 0), mean_S, old_S)
        return finite, self.excess_S

    def _sampling_S(self) -> Tensor:
        if self.sampling == "uniform":
            return torch.full_like(self.learnt.weight_S, 1 / len(self.learnt.names))
        if self.learnt.token_S is None:
            raise ConfigError(
                "mixer.sampling=natural needs the sources' sizes: plan first, or give "
                "sources={name: training tokens}"
            )
        return self.learnt.share_S

    def state_dict(self) -> dict[str, Any]:
        own = {} if self.excess_S is None else {"excess": self.excess_S}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.excess_S = state.get("excess")
