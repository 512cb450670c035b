"""DoGE: a mixture from one proxy run that follows gradient alignment (Fan et al., 2024).

Shapes: B samples, K sketch, S sources.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Fraction, Options
from dograph.domains.partition import all_finite
from dograph.errors import ConfigError
from dograph.mixers import source_weights
from dograph.mixers.base import Lab, Planner, Proxy, require_sources
from dograph.types import Mixture, Signals

MOST = 5.0  # of a step's score, in learning rates: the authors' dw_max; the least is 0
TINY = 1e-6  # added to norms, as in the authors' code


class DoGEUpdate(Options):
    """Options of the weight update, with the defaults of the authors' code."""

    mu: float = Field(0.01, gt=0)
    targets: source_weights.Names = None  # None: all
    clip_norm: float = Field(5.0, gt=0)
    alignment: Literal["independent", "same_batch"] = "independent"  # samples of <g_i, g_i>
    exclude_self: bool = False  # a source does not count for its own alignment
    smoothing: Fraction = 0.0  # c


class DoGEProxyOptions(DoGEUpdate, source_weights.SourceOptions, owner="doge-proxy"):
    """Options of the proxy: those of the update, and the sources' names outside a plan."""


class DoGEProxy(source_weights.GradientMixer):
    """Raise the weight of sources whose gradient is aligned with that of the targets.

        W_i    = <g_i, sum_{j in targets} g_j>
        s_i    = clip(lr W_i / (mean_i |g_i| + 1e-6), 0, 5 lr)
        log a <- log a + s / mu; a <- softmax; a <- (1 - c) a + c / S

    g_i is the mean gradient of the source's samples in the world batch, known by its sketch and
    scaled down to norm `clip_norm`; a source that is absent keeps its last one. Inner products of
    sketches of K numbers are unbiased, with a variance of about 2 |g|^2 |h|^2 / K or less. The
    result is the average of a over the steps.

    `alignment: independent` measures <g_i, g_i> between different samples, as the authors do with
    their held-out target (`unbiased_gram`, scaled like g_i twice). A source with one sample in
    the batch is compared with its gradient in an earlier batch, or has no such term if there is
    none; an absent one keeps the last value. `same_batch` takes |g_i|^2 as it is: it includes the
    noise of the batch and raises noisy sources.

    A sample of source i weighs a_i * (its scaling) / (the source's samples), with the new a: the
    gradient points along sum_i a_i g_i. Weights are divided by their sum, so its length differs
    from the authors' by one factor per step, which clipping and AdamW largely remove.

    `targets` None: all sources (universal generalization). Names: only those; they are drawn as
    often as others, do not train the model, and are not part of the result (out-of-domain). A
    batch with only samples of targets, which has fewer samples than there are sources, gets equal
    weights.
    """

    option_type = DoGEProxyOptions
    kept: ClassVar[dict[str, str]] = {
        "projection": "projection",
        "gradients": "gradient_SK",
        "squares": "square_S",
    }
    options: DoGEProxyOptions
    gradient_SK: Tensor | None = None  # the last one of each source, scaled down
    # <g_i, g_i> between different samples, as last known. None with gradients: a state from before
    # there was a choice of `alignment`; that run goes on with same_batch, as it began.
    square_S: Tensor | None = None
    alignment_S: Tensor | None = None  # W of the last step
    _train_S: Tensor | None = None  # 1.0 for sources that train the model, computed once

    def _initial(self) -> Tensor:
        """Equal for sources that train the model, 0 for others."""
        targets = self.options.targets or ()
        require_sources("targets", targets, self.names)
        trained_S = torch.tensor([name not in targets for name in self.names]).double()
        if targets and not trained_S.any():
            raise ConfigError(
                f"mixer.targets={list(targets)} leaves no source to train on; for all sources as "
                "targets leave it out"
            )
        return trained_S / trained_S.sum()

    def weigh(self, signals: Signals) -> Tensor:
        lr: float = self._require(signals, "lr")
        sketch_BK: Tensor = self._require(signals, "sketch_BK")
        own_BS, count_S, sum_SK, sum_S = self._sums(signals)
        finite, mean_SK = all_finite(sum_S), sum_SK / count_S.clamp_min(1)[:, None]
        scale_S: Tensor = (self.options.clip_norm / (mean_SK.norm(dim=1) + TINY)).clamp_max(1)
        if self.gradient_SK is None:
            self.gradient_SK, self.square_S = torch.zeros_like(mean_SK), torch.zeros_like(count_S)
        old_SK = self.gradient_SK
        fresh_S = finite & (count_S > 0)
        self.gradient_SK = torch.where(fresh_S[:, None], scale_S[:, None] * mean_SK, old_SK)
        product_SS = self.gradient_SK @ self.gradient_SK.mT
        if self.options.alignment == "independent" and self.square_S is not None:
            gram_SS = source_weights.unbiased_gram(count_S, sum_SK, sum_S)
            pairs_S = scale_S.square() * gram_SS.diagonal()
            known_S = torch.where(count_S > 1, pairs_S, (self.gradient_SK * old_SK).sum(dim=1))
            self.square_S = torch.where(fresh_S, known_S, self.square_S)
            product_SS = product_SS + (self.square_S - product_SS.diagonal()).diag()
        if self._train_S is None:
            self._train_S = (self._initial() > 0).to(own_BS)
        train_S = self._train_S
        target_S = 1 - train_S if self.options.targets else train_S
        if self.options.exclude_self:
            product_SS = product_SS - product_SS.diag().diag()
        self.alignment_S = product_SS @ target_S
        norm = (train_S * self.gradient_SK.norm(dim=1)).sum() / train_S.sum()
        score_S = (lr * self.alignment_S / (norm + TINY)).clamp(0, MOST * lr)
        weight_S = torch.softmax(self.weight_S.log() + score_S / self.options.mu, dim=0)
        equal_S, c = train_S / train_S.sum(), self.options.smoothing
        self.update((1 - c) * weight_S + c * equal_S, finite)
        each_S = self.weight_S * scale_S / count_S.clamp_min(1)
        return self.share_out(each_S, own_BS, finite, sketch_BK, alignment=self.alignment_S)


REMEDY = "raise mixer.mu (to 0.05 or 0.1, say)"
# Absent sources keep their sketches, so all must be under one projection. No probes are needed.
SETTINGS = {"sketch": {"refresh": "never"}, "probe": {"rows": 0}}


class DoGEOptions(DoGEUpdate, owner="doge"):
    seed: int = 0


class DoGE(Planner):
    """Train a proxy that upweights sources whose gradients help the targets; average its weights.

    `targets` None: good on all sources. Names: good on those, which are drawn in the proxy but are
    not part of the plan.
    """

    def __init__(self, **options: Any) -> None:
        self.options = DoGEOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        targets = self.options.targets or []
        require_sources("targets", targets, lab.tokens)
        trained = [name for name in lab.tokens if name not in targets]
        given = self.options.model_dump(include=set(DoGEUpdate.model_fields), exclude_none=True)
        label, mixer = f"proxy, mu {self.options.mu:g}", {"name": "doge-proxy", **given}
        [result] = lab.train([Proxy(label, mixer, self.options.seed, SETTINGS)])
        found = source_weights.learned_weights(result.state, trained)
        self.findings = found | {"advice": source_weights.advice_on(found, REMEDY)}
        return Mixture.normalised(found["weights"])
