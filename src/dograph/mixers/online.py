"""Mixers that change what is drawn by the losses of the run itself: their base, and ODM.

Shapes: B samples of the world batch, S sources.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.domains.partition import all_finite
from dograph.mixers.base import Lab, Report
from dograph.mixers.fixed import sampling_mixture
from dograph.mixers.source_weights import SourceMixer, SourceOptions, means_by_source
from dograph.types import Mixture, Signals

MOST_MIXTURES = 1000  # of a run: weights.jsonl is written anew whenever it has grown
FEWEST_STEPS = 10  # between two mixtures: with each one, the batch that was read ahead is wrong
REWARD_SCALE = 10  # nats: the authors' exp3 divides losses by it


class OnlineOptions(SourceOptions):
    """Options of every such mixer; None: in proportion to the run."""

    warmup_steps: int | None = Field(None, ge=0)  # drawn by tokens
    remix_every: int | None = Field(None, ge=1)  # steps


class OnlineMixer(SourceMixer):
    """Draws by tokens at first, then by shares that every step changes; equal sample weights.

    `weight_S` holds the shares that are wanted now. The sampler draws whole samples and counts anew
    from each mixture on, so a source with a share of half a sample would never be drawn. What was
    wanted and not drawn is therefore owed, and added to the next mixture.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss", "source"})
    warmup: ClassVar[float]  # share of the run's steps
    kept: ClassVar[Mapping[str, str]] = {
        name: name for name in ("owed_S", "loss_S", "warmup_steps", "remix_every")
    }
    options: OnlineOptions
    owed_S: Tensor | None = None  # samples that were wanted and not drawn
    loss_S: Tensor | None = None  # the last one of each source
    warmup_steps: int
    remix_every: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.warm_up(0)  # until the length of the run is known

    def _initial(self) -> Tensor:
        return super()._initial() if self.token_S is None else self.token_S / self.token_S.sum()

    def plan(self, lab: Lab) -> Mixture:
        super().plan(lab)
        self.warm_up(lab.steps)
        return sampling_mixture("natural", lab.tokens)

    def warm_up(self, steps: int) -> None:
        given, every = self.options.warmup_steps, self.options.remix_every
        self.warmup_steps = round(self.warmup * steps) if given is None else given
        self.remix_every = every or max(math.ceil(steps / MOST_MIXTURES), FEWEST_STEPS)

    def remix(self, signals: Signals) -> Mixture | None:
        """Learn from this step; a mixture every `remix_every` steps after the warm-up."""
        loss_B, own_BS = self._require(signals, "loss_B"), self._ready(signals)
        finite, count_S, step = all_finite(loss_B), own_BS.sum(dim=0), signals.step
        if self.loss_S is None:  # a source that was not seen yet has the mean of the others
            self.loss_S = torch.where(finite, loss_B.double().mean(), 0.0).expand_as(count_S)
        drawn_S = count_S / signals.num_samples
        owed_S = torch.zeros_like(drawn_S) if self.owed_S is None else self.owed_S
        self.owed_S = owed_S + signals.num_samples * (self.weight_S - drawn_S)
        seen_S = finite & (count_S > 0)
        self.loss_S = torch.where(seen_S, means_by_source(loss_B, own_BS), self.loss_S)
        share_S = self.shares(signals, self.loss_S, drawn_S)
        if self.token_S is not None:  # a source may have validation text alone
            share_S = share_S * (self.token_S > 0)
        self.update(share_S / share_S.sum(), finite)
        if step < self.warmup_steps or (step + 1) % self.remix_every:
            return None
        owed_S = self.owed_S / (signals.num_samples * self.remix_every)
        wanted = (self.weight_S + owed_S).clamp_min(0).tolist()
        return Mixture.normalised(dict(zip(self.names, wanted, strict=True)))

    def shares(self, signals: Signals, loss_S: Tensor, drawn_S: Tensor) -> Tensor:
        """The shares to draw from now on, given those of this batch; on the device."""
        raise NotImplementedError

    def report(self) -> Report:
        """From the state, so that a resumed run reports what an unstopped one does."""
        return {} if self.loss_S is None else self.weights_report(loss_nats=self.loss_S)


class ODMOptions(OnlineOptions, owner="odm"):
    update: Literal["smoothed", "exp3"] = "smoothed"
    smoothing: float = Field(0.5, ge=0, lt=1)  # alpha, of `smoothed`


class ODM(OnlineMixer):
    """Online Data Mixing: a bandit whose reward is the loss of a source (Albalak et al., 2023).

        e_t = min(1/S, sqrt(ln S / (S t)))                       t: steps, from 1
        smoothed:  R_i <- alpha R_i + (1 - alpha) exp(l_i);  s = R / sum(R)
        exp3:      R_i <- R_i + (l_i / 10) / p_i;            s = softmax(e_{t-1} R)
        p = (1 - S e_t) s + e_t

    l_i is the mean loss of the source's samples in the world batch; a source that is absent keeps
    R_i, which starts at 0. `smoothed` is the paper's method by the authors' account.
    """

    warmup: ClassVar[float] = 0.02
    kept: ClassVar[dict[str, str]] = {**OnlineMixer.kept, "rewards": "reward_S"}
    option_type = ODMOptions
    options: ODMOptions
    reward_S: Tensor | None = None  # R

    def shares(self, signals: Signals, loss_S: Tensor, drawn_S: Tensor) -> Tensor:
        if signals.step < self.warmup_steps:
            return self.weight_S
        number, t = len(loss_S), signals.step + 1
        least, before = least_share(number, t), least_share(number, t - 1)
        reward_S = torch.zeros_like(loss_S) if self.reward_S is None else self.reward_S
        if self.options.update == "exp3":
            raised_S = reward_S + loss_S / REWARD_SCALE / self.weight_S
        else:
            raised_S = torch.lerp(loss_S.exp(), reward_S, self.options.smoothing)
        self.reward_S = reward_S = torch.where(drawn_S > 0, raised_S, reward_S)
        exp3_S, smoothed_S = torch.softmax(before * reward_S, dim=0), reward_S / reward_S.sum()
        part_S = exp3_S if self.options.update == "exp3" else smoothed_S
        return (1 - number * least) * part_S + least


def least_share(number: int, t: int) -> float:
    """e_t: the share that every source keeps at step t."""
    return min(1 / number, math.sqrt(math.log(number) / (number * max(t, 1))))
