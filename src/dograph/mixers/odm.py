"""Online Data Mixing: a bandit over sources whose reward is their loss (Albalak et al., 2023)."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dograph.config import Fraction
from dograph.mixers.online import OnlineMixer, OnlineOptions
from dograph.types import Signals

REWARD_SCALE = 10  # nats: the authors' exp3 divides losses by it


class ODMOptions(OnlineOptions):
    owner: ClassVar[str] = "odm"

    update: Literal["smoothed", "exp3"] = "smoothed"
    smoothing: Fraction = 0.5  # alpha, of `smoothed`


class ODM(OnlineMixer):
    """Draw more of sources with a high loss, and explore less and less.

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
