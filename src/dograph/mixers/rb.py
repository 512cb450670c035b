"""R&B, the part Balance: draw by the alignment of gradients, online (Ge et al., 2025).

Shapes: B samples of the world batch, K sketch, S sources (or strata).
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.domains.partition import all_finite
from dograph.mixers.base import Lab, Mixer
from dograph.mixers.fixed import sampling_mixture
from dograph.mixers.source_weights import GradientMixer, SourceOptions, unbiased_gram
from dograph.types import Mixture, Signals


class RBOptions(SourceOptions, owner="rb"):
    strength: float = Field(1.0, ge=0)  # lambda
    remix_every: int = Field(50, ge=1)  # steps of a round
    groups: Literal["sources", "strata"] = "sources"


class RB(GradientMixer):
    """Draw more from sources whose gradient is aligned with that of the whole mixture.

        p <- softmax(lambda G p / |G p|_2)    after every round of `remix_every` steps

    G_ij = <g_i, g_j>, with g_i the mean gradient of the source's samples in the round; the diagonal
    is between different samples (`unbiased_gram`). A source with fewer than two samples in a
    round keeps its share, and adds them to the next round. All samples of a batch weigh the same.
    `groups: strata` has one share per stratum of the corpus.
    """

    option_type = RBOptions
    kept: ClassVar[dict[str, str]] = {
        "projection": "projection",
        "counts": "count_S",
        "sums": "sum_SK",
        "square_sums": "square_S",
    }
    options: RBOptions
    # Of the samples of the round: their number, the sums of their sketches and of squared norms.
    count_S: Tensor | None = None
    sum_SK: Tensor
    square_S: Tensor

    def plan(self, lab: Lab) -> Mixture:
        """Start from equal shares."""
        if self.options.groups == "sources":
            return super().plan(lab)
        self._open({name: float(n) for name, n in lab.strata.items()})
        return sampling_mixture("uniform", lab.strata)

    def weigh(self, signals: Signals) -> Tensor:
        weight_B = Mixer.weigh(self, signals)
        self.observe(signals, weight_B)
        return weight_B

    def weigh_lagged(self, signals: Signals, num_samples: int) -> Tensor:
        return Mixer.weigh(self, replace(signals, num_samples=num_samples))[: signals.num_samples]

    def observe(self, signals: Signals, weight_B: Tensor) -> None:
        """Add the batch to the round."""
        name = "source_B" if self.options.groups == "sources" else "stratum_B"
        _, *added = self._sums(signals, name)
        finite = all_finite(added[-1])
        added = [torch.where(finite, value, 0.0) for value in added]
        if self.count_S is not None:
            held = (self.count_S, self.sum_SK, self.square_S)
            added = [old + new for old, new in zip(held, added, strict=True)]
        self.count_S, self.sum_SK, self.square_S = added
        self._report = self.weights_report()

    def remix(self, signals: Signals) -> Mixture | None:
        """At the end of a round, the next shares."""
        if (signals.step + 1) % self.options.remix_every or self.count_S is None:
            return None
        known_S = self.count_S > 1
        gram_SS = unbiased_gram(self.count_S, self.sum_SK, self.square_S)
        new_S = balanced(gram_SS, self.weight_S, self.options.strength) * known_S
        new_S = new_S * (self.weight_S * known_S).sum() / new_S.sum()
        self.update(torch.where(known_S, new_S, self.weight_S), all_finite(gram_SS))
        self.count_S, self.square_S = self.count_S * ~known_S, self.square_S * ~known_S
        self.sum_SK = self.sum_SK * ~known_S[:, None]
        return Mixture.normalised(dict(zip(self.names, self.weight_S.tolist(), strict=True)))


def balanced(gram_SS: Tensor, share_S: Tensor, strength: float) -> Tensor:
    """softmax(lambda G p / |G p|_2); equal shares if G p is 0."""
    aligned_S = gram_SS @ share_S
    norm = aligned_S.norm()
    return torch.softmax(strength * aligned_S / torch.where(norm > 0, norm, 1.0), dim=0)
