"""Adaptive Data Optimization: shares by how fast each source's loss falls (Jiang et al., 2025).

Shapes: S sources, P points of the curves, R = S + 1 columns: log n, and the loss of each source.
"""

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dograph.mixers.base import Report
from dograph.mixers.online import FEWEST_STEPS, OnlineMixer, OnlineOptions
from dograph.mixtures.power_laws import STEP_DELTA, LossCurve, fit_power_laws
from dograph.types import Signals

LEAST_EXPONENT, MOST_EXPONENT = 0.05, 0.8  # the authors' bounds: of the policy, and of the fit
LEAST_SHARE = 0.01  # of a source in the policy of one step, before it is divided by the sum
DECAY = 0.9  # of the average of the shares that were drawn
NEW = 0.1  # share of this step's policy in what is drawn; the rest is the mean over the steps
REFITS, MOST_STEPS = 20, 1000  # fits of a run, and steps between them; the authors': 1000
FEWEST_POINTS, MOST_POINTS = 8, 256


class ADOOptions(OnlineOptions, owner="ado"):
    refit_every: int | None = Field(None, ge=1)  # steps; None: a 20th of the run, 10 to 1000


class ADO(OnlineMixer):
    """Draw more of sources whose loss still falls fast, by a law of each one's training loss.

        L_k(n) = e_k + b_k n^-a_k                    n: samples drawn so far, of all sources
        rho_k  ~ mu_k max(a_k, 0.05) (L_k(n) - e_k) / n sqrt(h_k);  rho <- max(rho, 0.01) / sum
        pi     = 0.9 mean(rho) + 0.1 rho

    mu are the shares by tokens, h the average (0.9) of the shares that were drawn, mean(rho) that
    over the steps so far, which starts at mu. Every `refit_every` steps the laws are fitted to all
    losses after the warm-up; mu is drawn until then. A source that is absent keeps its last loss.

    A point of the curves is the mean over equally many steps. When there are 256, neighbours are
    joined, so that a run of any length keeps few. They are on the device until a fit needs them.
    """

    warmup: ClassVar[float] = 0.05
    kept: ClassVar[dict[str, str]] = {
        **OnlineMixer.kept,
        **{name: name for name in ("refit_every", "samples", "drawn_S", "mean_S", "law_3S")},
        **{name: name for name in ("point_PR", "point_steps", "open_R", "open_steps")},
    }
    option_type = ADOOptions
    options: ADOOptions
    refit_every: int
    samples = 0  # n
    drawn_S: Tensor | None = None  # h
    mean_S: Tensor | None = None  # mean(rho)
    law_3S: Tensor | None = None  # log b, e, a of each source
    point_PR: Tensor | None = None
    point_steps = 1  # steps of a point
    open_R: Tensor | None = None  # the sum over `open_steps` of a point that is not complete
    open_steps = 0

    def warm_up(self, steps: int) -> None:
        super().warm_up(steps)
        default = min(max(steps // REFITS, FEWEST_STEPS), MOST_STEPS)
        self.refit_every = self.options.refit_every or default

    def shares(self, signals: Signals, loss_S: Tensor, drawn_S: Tensor) -> Tensor:
        known_S = torch.ones_like(loss_S) if self.token_S is None else self.token_S
        natural_S = known_S / known_S.sum()
        self.samples += signals.num_samples
        before_S = natural_S if self.drawn_S is None else self.drawn_S
        self.drawn_S = DECAY * before_S + (1 - DECAY) * drawn_S
        self.mean_S = natural_S if self.mean_S is None else self.mean_S
        if signals.step >= self.warmup_steps:
            self._add_point(loss_S)
            if (signals.step + 1) % self.refit_every == 0:
                self._refit()
        if self.law_3S is None:
            return natural_S
        rho_S = policy(self.law_3S, self.samples, natural_S, self.drawn_S)
        share_S = (1 - NEW) * self.mean_S + NEW * rho_S
        self.mean_S = self.mean_S + (rho_S - self.mean_S) / (signals.step + 1)
        return share_S

    def _add_point(self, loss_S: Tensor) -> None:
        # The mean of log n, not of n, is where a power law has nearly its mean value.
        row_R = torch.nn.functional.pad(loss_S, (1, 0), value=math.log(self.samples))
        self.open_R = row_R if self.open_R is None else self.open_R + row_R
        self.open_steps += 1
        if self.open_steps < self.point_steps:
            return
        new_PR = (self.open_R / self.open_steps)[None]
        self.open_R, self.open_steps = None, 0
        point_PR = new_PR if self.point_PR is None else torch.cat((self.point_PR, new_PR))
        if len(point_PR) == MOST_POINTS:
            point_PR = (point_PR[::2] + point_PR[1::2]) / 2
            self.point_steps *= 2
        self.point_PR = point_PR

    def _refit(self) -> None:
        """Fit the laws anew; this waits for the device."""
        if self.point_PR is None or len(self.point_PR) < FEWEST_POINTS:
            return
        log_n_P, *loss_SP = self.point_PR.cpu().numpy().T
        curves = [LossCurve(np.exp(log_n_P), loss_P) for loss_P in loss_SP]
        free = fit_power_laws(curves, delta=STEP_DELTA, group_J=range(len(curves)))
        bound = fit_power_laws(curves, delta=STEP_DELTA, alpha=MOST_EXPONENT)
        pairs = zip(free, bound, strict=True)
        laws = [steepest if law.alpha > MOST_EXPONENT else law for law, steepest in pairs]
        law_S3 = [(law.alpha * law.log_x0, law.c, law.alpha) for law in laws]
        self.law_3S = torch.tensor(law_S3, dtype=torch.float64).T.to(self.point_PR.device)

    def report(self) -> Report:
        more = {}
        if self.law_3S is not None:
            _, more["irreducible_nats"], more["exponent"] = self.law_3S
        return {} if self.loss_S is None else self.weights_report(loss_nats=self.loss_S, **more)


def policy(law_3S: Tensor, samples: int, natural_S: Tensor, drawn_S: Tensor) -> Tensor:
    """rho: each source's share in the fall of the loss that the next samples would bring."""
    log_b_S, _, exponent_S = law_3S
    reducible_S = (log_b_S - exponent_S * math.log(samples)).exp()  # L(n) - e
    slope_S = exponent_S.clamp_min(LEAST_EXPONENT) * reducible_S / samples
    rho_S = natural_S * slope_S * drawn_S.sqrt()
    tiny = torch.finfo(rho_S.dtype).tiny  # if no loss falls any more
    rho_S = (rho_S / rho_S.sum().clamp_min(tiny)).clamp_min(LEAST_SHARE)
    result: Tensor = rho_S / rho_S.sum()
    return result
