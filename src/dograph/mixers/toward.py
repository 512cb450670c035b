"""Choice by gradients: draw so that the mean gradient is that of target texts.

A target is a source of the corpus that no update is made with: a few of its rows are drawn, so that
they are sketched with the batch, and have the weight 0.

Shapes: B samples, K sketch, S strata, T targets, F folds.
"""

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Fraction
from dograph.domains.partition import all_finite
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Report, require_sources
from dograph.mixers.source_weights import GradientMixer, Names, SourceOptions
from dograph.stats import t_quantile
from dograph.types import Mixture, Signals

MOST_TARGET = 0.125  # of a batch
FOLDS = 8  # step n adds to fold n mod 8: independent samples, for the jackknife
HELP = ("help", "help_low", "help_high")
SEEN = 0.1  # recent samples, counted with their decay, below which a stratum has none
TINY = 1e-30  # in place of 0 in a denominator
ITERATIONS, TOLERANCE = 2000, 1e-9  # of `matched`


class TowardOptions(SourceOptions):
    owner: ClassVar[str] = "toward"

    sources: None = None  # strata take their place, with the plan
    targets: Names = None
    natural: Fraction = 0.25  # weight of natural text among the targets
    rows: int = Field(48, ge=1)  # of targets, from one mixture to the next
    remix_every: int = Field(40, ge=1)  # steps
    memory: float = Field(150.0, gt=0)  # steps after which a sample counts 1 / e
    min_fraction: Fraction = 0.1  # of a stratum's share of the tokens
    max_epochs: float = Field(5.0, gt=0)


class Toward(GradientMixer):
    """Draw strata so that their mean gradient matches that of the targets.

        q = argmin |t - sum_s q_s g_s|^2    on the simplex, low_s <= q_s <= high_s
        t = natural sum_s n_s g_s + (1 - natural) mean_t g_t,  n_s the strata's shares of the tokens

    That is the MMD of the gradient kernel between what is drawn and the targets (Theorem 1). g are
    means of recent samples, with their noise: in |sum_s q_s g_s|^2 it is a ridge, which keeps noisy
    strata from large shares; in t natural text brings the same noise, which draws them to natural
    shares. Bounds are `min_fraction` of n_s, and `max_epochs`; a stratum without a recent sample
    gets its lower bound.

    A stratum that is drawn less than once in a round is owed a sample, as in `OnlineMixer`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"sketch"})
    needs_target: ClassVar[bool] = True
    counts_first: ClassVar[bool] = True
    option_type = TowardOptions
    kept: ClassVar[dict[str, str]] = {
        **{name: name for name in ("projection", "target_TS", "most_S", "owed_S")},
        **{name: name for name in ("count_FS", "sum_FSK", "help_3S")},
    }
    options: TowardOptions
    target_TS: Tensor  # each target as a mixture
    most_S: Tensor  # largest shares, by `max_epochs`
    owed_S: Tensor  # samples that were wanted and not drawn
    count_FS: Tensor  # of recent samples, older ones count less
    sum_FSK: Tensor | None = None  # of their sketches
    help_3S: Tensor | None = None  # <g_s, g_t> / |g_t|^2 as last measured, with 95 % intervals

    @property
    def needs_before_weights(self) -> frozenset[str]:
        """Strata are known without a forward."""
        return frozenset()

    def plan(self, lab: Lab) -> Mixture:
        """Draw by tokens and no targets: their share depends on the batch, known from step 1 on."""
        targets = self.options.targets or []
        require_sources("targets", targets, lab.tokens)
        token_S = torch.tensor([*lab.strata.values()], dtype=torch.float64)
        sources = [name if name in lab.tokens else name.rpartition("/")[0] for name in lab.strata]
        is_own = [[source == target for source in sources] for target in targets]
        own_TS = torch.tensor(is_own).reshape(-1, len(sources)) * token_S
        if not targets or not own_TS.any(dim=-1).all() or torch.equal(own_TS.sum(dim=0), token_S):
            raise ConfigError(
                f"mixer.targets={targets or None} must name sources with training text and leave "
                f"some to train on; there are {', '.join(lab.tokens)}. Add trusted text to the "
                "corpus as a source, as in: dograph data prepare web.jsonl trusted=trusted.jsonl"
            )
        free_S = token_S - own_TS.sum(dim=0)
        self.target_TS = own_TS / own_TS.sum(dim=1, keepdim=True)
        self._open(dict(zip(lab.strata, free_S.tolist(), strict=True)))
        self.most_S = self.options.max_epochs * free_S / max(lab.budget, 1)
        self.owed_S = torch.zeros_like(free_S)
        return self._mixture(self.weight_S)

    def _initial(self) -> Tensor:
        """By tokens, without the targets."""
        token_S = self.known_token_S("mixer.targets")
        return token_S / token_S.sum()

    def _mixture(self, share_S: Tensor) -> Mixture:
        return Mixture.normalised(dict(zip(self.names, share_S.tolist(), strict=True)))

    def weigh(self, signals: Signals) -> Tensor:
        """Equal weights, and 0 for targets; a batch of targets alone gets equal weights."""
        stratum_B = self._require(signals, "stratum_B")
        learns_S = (self.target_TS == 0).all(dim=0).to(stratum_B.device)
        learns_B = learns_S[stratum_B].float()
        learns_B = torch.where(learns_B.any(), learns_B, 1.0)
        return learns_B / learns_B.sum()

    def remix(self, signals: Signals) -> Mixture | None:
        """Add the batch; a mixture after the first step, and every `remix_every` steps."""
        _, count_S, sum_SK, _ = self._sums(signals, "stratum_B")
        step, number, every = signals.step + 1, signals.num_samples, self.options.remix_every
        if self.sum_FSK is None:
            self.count_FS = count_S.new_zeros((FOLDS, *count_S.shape))
            self.sum_FSK = torch.zeros((FOLDS, *sum_SK.shape), device=sum_SK.device)
        for name in ("target_TS", "most_S", "owed_S", "count_FS", "sum_FSK", "help_3S"):
            if (held := getattr(self, name)) is not None:
                setattr(self, name, held.to(sum_SK.device))
        self.owed_S = self.owed_S + number * self.weight_S - count_S
        finite, decay = all_finite(sum_SK), math.exp(-FOLDS / self.options.memory)
        for held, new in ((self.count_FS, count_S), (self.sum_FSK, sum_SK)):
            held[step % FOLDS] = decay * held[step % FOLDS] + torch.where(finite, new, 0.0)
        if step > 1 and step % every:
            return None
        part = min(self.options.rows / (number * every), MOST_TARGET)
        share_S = (1 - part) * self._match(self.sum_FSK) + part * self.target_TS.mean(dim=0)
        self.update(share_S, torch.ones_like(finite))
        return self._mixture((share_S + self.owed_S / (number * every)).clamp_min(0))

    def _match(self, sum_FSK: Tensor) -> Tensor:
        """q, or shares by tokens until all targets were seen; this waits for the device."""
        natural_S, options, count_S = self._initial(), self.options, self.count_FS.sum(dim=0)
        if ((self.target_TS > 0).double() @ count_S < SEEN).any():
            return natural_S
        sum_SK, helps = sum_FSK.double().sum(dim=0), []
        # without each fold, then with all
        for part_S, part_SK in [*zip(self.count_FS, sum_FSK, strict=True), (0.0, 0.0)]:
            mean_SK, target_K = means(count_S - part_S, sum_SK - part_SK, self.target_TS)
            helps.append(mean_SK @ target_K / target_K.square().sum().clamp_min(TINY))
        *left, help_S = helps
        error_S = math.sqrt(FOLDS - 1) * torch.stack(left).std(dim=0, correction=0)
        reach_S = t_quantile(FOLDS - 1) * error_S
        self.help_3S = torch.stack((help_S, help_S - reach_S, help_S + reach_S))
        wanted_K = options.natural * natural_S @ mean_SK + (1 - options.natural) * target_K
        low_S = options.min_fraction * natural_S
        high_S = torch.where(count_S > SEEN, self.most_S.maximum(low_S), low_S)
        high_S = high_S / high_S.sum().clamp_max(1)  # a corpus too small for the run
        problem = (mean_SK @ mean_SK.mT, mean_SK @ wanted_K, low_S, high_S)
        return torch.from_numpy(matched(*(part.cpu().numpy() for part in problem))).to(natural_S)

    def report(self) -> Report:
        help_3S = {} if self.help_3S is None else dict(zip(HELP, self.help_3S, strict=True))
        return self.weights_report(**help_3S)


def means(count_S: Tensor, sum_SK: Tensor, target_TS: Tensor) -> tuple[Tensor, Tensor]:
    """Mean gradient of every stratum, 0 without samples; the mean of those of the targets."""
    in_TS = (target_TS > 0).double()
    target_TK = in_TS @ sum_SK / (in_TS @ count_S).clamp_min(SEEN)[:, None]
    mean_SK = torch.where(count_S > SEEN, 1 / count_S, 0.0)[:, None] * sum_SK
    return mean_SK, target_TK.mean(dim=0)


def matched(
    gram_SS: np.ndarray, aligned_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray
) -> np.ndarray:
    """Argmin q'Gq - 2 q'a with sum 1 and low <= q <= high: projected gradients with momentum."""
    rate = 1 / max(float(np.linalg.eigvalsh(gram_SS)[-1]), TINY)
    share_S = point_S = onto_mixtures((low_S + high_S) / 2, low_S, high_S)
    momentum = 1.0
    for _ in range(ITERATIONS):
        new_S = onto_mixtures(point_S - rate * (gram_SS @ point_S - aligned_S), low_S, high_S)
        moved_S = new_S - share_S
        if (point_S - new_S) @ moved_S > 0:  # it has gone too far: start again from here
            momentum = 1.0
        before, momentum = momentum, (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        share_S, point_S = new_S, new_S + (before - 1) / momentum * moved_S
        if np.abs(moved_S).max() < TOLERANCE:
            break
    return share_S


def onto_mixtures(value_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
    """The nearest point with sum 1 between the bounds: clip(value - m).

    Its sum falls with m, and is linear between the places where an entry reaches a bound.
    """
    place_N = np.sort(np.concatenate((value_S - high_S, value_S - low_S)))
    total_N = np.clip(value_S - place_N[:, None], low_S, high_S).sum(axis=1)
    m = np.interp(-1.0, -total_N, place_N)
    nearest_S: np.ndarray = np.clip(value_S - m, low_S, high_S)
    return nearest_S
