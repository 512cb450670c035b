"""DoGE: a mixture from one proxy run that follows gradient alignment (Fan et al., 2024).

Shapes: B samples, K sketch, S sources.
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Fraction, Options, Refresh
from dograph.domains.partition import all_finite
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Planner, Proxy, require_sources
from dograph.mixers.source_weights import LearnedWeights, Names, SourceMixer, SourceOptions
from dograph.types import Mixture, Signals

MOST = 5.0  # of a step's score, in learning rates: the authors' dw_max; the least is 0
TINY = 1e-6  # added to norms, as in the authors' code


class DoGEUpdate(Options):
    """Options of the weight update, with the defaults of the authors' code."""

    mu: float = Field(0.01, gt=0)
    targets: Names = None  # None: all
    clip_norm: float = Field(5.0, gt=0)
    exclude_self: bool = False  # a source does not count for its own alignment
    smoothing: Fraction = 0.0  # c


class DoGEProxyOptions(DoGEUpdate, SourceOptions):
    owner: ClassVar[str] = "doge-proxy"


class DoGEProxy(SourceMixer):
    """Raise the weight of sources whose gradient is aligned with that of the targets.

        W_i    = <g_i, sum_{j in targets} g_j>
        s_i    = clip(lr W_i / (mean_i |g_i| + 1e-6), 0, 5 lr)
        log a <- log a + s / mu; a <- softmax; a <- (1 - c) a + c / S

    g_i is the mean gradient of the source's samples in the world batch, known by its sketch and
    scaled down to norm `clip_norm`; a source that is absent keeps its last one. Inner products of
    sketches of K numbers are unbiased, with a variance of about 2 |g|^2 |h|^2 / K or less. The
    result is the average of a over the steps.

    A sample of source i weighs a_i * (its scaling) / (the source's samples), with the new a: the
    gradient points along sum_i a_i g_i. Weights are divided by their sum, so its length differs
    from the authors' by one factor per step, which clipping and AdamW largely remove.

    `targets` None: all sources (universal generalization). Names: only those; they are drawn as
    often as others, do not train the model, and are not part of the result (out-of-domain). A
    batch with only samples of targets, which has fewer samples than there are sources, gets equal
    weights.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"sketch", "source"})
    option_type = DoGEProxyOptions
    kept: ClassVar[dict[str, str]] = {"projection": "projection", "gradients": "gradient_SK"}
    options: DoGEProxyOptions
    gradient_SK: Tensor | None = None  # the last one of each source, scaled down
    projection: int | None = None  # of gradient_SK
    alignment_S: Tensor | None = None  # W of the last step
    # Which sources train the model and which are targets, as 1.0 and 0.0; computed once.
    _masks: tuple[Tensor, Tensor] | None = None

    def _trained(self, names: list[str]) -> list[str]:
        targets = self.options.targets
        if targets is None:
            return names
        require_sources("targets", targets, names)
        trained = [name for name in names if name not in targets]
        if not trained:
            raise ConfigError(
                f"mixer.targets={list(targets)} leaves no source to train on; for all sources as "
                "targets leave it out"
            )
        return trained

    def refresh(self, asked: Refresh | None) -> Refresh:
        if asked not in (None, "never"):
            raise ConfigError(
                f"sketch.refresh={asked} with mixer.name=doge-proxy: a source that is absent from "
                "a batch keeps its last sketch, so all must be under one projection; set "
                "sketch.refresh=never"
            )
        return "never"

    def weigh(self, signals: Signals) -> Tensor:
        sketch_BK = self._require(signals, "sketch_BK")
        if signals.lr is None:
            raise ConfigError("DoGEProxy's steps go with the learning rate; fill Signals.lr")
        own_BS, lr = self._ready(signals), signals.lr
        count_S, finite = own_BS.sum(dim=0), all_finite(sketch_BK)
        mean_SK = (own_BS.mT @ sketch_BK.double()) / count_S.clamp_min(1)[:, None]
        scale_S: Tensor = (self.options.clip_norm / (mean_SK.norm(dim=1) + TINY)).clamp_max(1)
        if self.gradient_SK is None:
            self.gradient_SK, self.projection = torch.zeros_like(mean_SK), signals.projection
        if self.projection != signals.projection:
            raise ConfigError(
                "DoGEProxy keeps the last sketch of a source that is absent, so all must be under "
                "one projection; this one was redrawn: use sketch.refresh=never"
            )
        old_SK = self.gradient_SK.to(mean_SK.device)
        fresh_S = finite & (count_S > 0)
        self.gradient_SK = torch.where(fresh_S[:, None], scale_S[:, None] * mean_SK, old_SK)
        if self._masks is None or self._masks[0].device != own_BS.device:
            train, targets = self._trained(self.names), self.options.targets or self.names
            self._masks = (
                own_BS.new_tensor([float(name in train) for name in self.names]),
                own_BS.new_tensor([float(name in targets) for name in self.names]),
            )
        train_S, target_S = self._masks
        product_SS = self.gradient_SK @ self.gradient_SK.mT
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


class DoGEOptions(DoGEUpdate):
    owner: ClassVar[str] = "doge"

    seed: int = 0


class DoGE(Planner):
    """Train a proxy that upweights sources whose gradients help the targets; average its weights.

    `targets` None: good on all sources. Names: good on those, which are drawn in the proxy but are
    not part of the plan.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = DoGEOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        targets = self.options.targets or []
        require_sources("targets", targets, lab.tokens)
        trained = [name for name in lab.tokens if name not in targets]
        shared = set(DoGEUpdate.model_fields)
        given = self.options.model_dump(include=shared, exclude_none=True)
        label, mixer = f"proxy, mu {self.options.mu:g}", {"name": "doge-proxy", **given}
        [result] = lab.train([Proxy(label, mixer, self.options.seed, SETTINGS)])
        outcome = LearnedWeights.of(result.state, trained)
        self.findings = outcome.findings() | {"advice": outcome.advice(REMEDY)}
        return Mixture.normalised(outcome.average)
