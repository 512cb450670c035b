"""One probe in numbers: how far apart its sources are, and whether its domains are its sources.

Intervals are over other rows of the same sources, as many: value +- t error. A separation's error
is by jackknife (separation.py), t with the freedom of the smallest source, n - 1.

NMI and purity depend on their rows through K-means, which no row taken out one at a time tells
much about. Their error is by halves: the rows of each source are split in two at random, and each
half is clustered anew. Halves are independent and, where a variance V goes as one over the number
of rows, of variance 2 V each, so that V = E (first - second)^2 / 4; both have the same bias from
being half as many, which cancels. It is averaged over SPLITS splits, and t has their freedom.
Where domains have nothing to do with sources, the variance falls faster than that, and the
interval is too wide.

Shapes: N rows (H of a half), K sketch, M domains, S sources, R relabellings; 2 is NMI and purity.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.domains.agreement import agreement, agreement_of_counts
from dograph.domains.scopes import KMeans
from dograph.errors import require
from dograph.eval.bounded import SHARE, cut
from dograph.eval.gradients import Separation, membership, separation
from dograph.eval.inspect import perceived
from dograph.eval.probe import Probe
from dograph.rng import stream
from dograph.stats import CONFIDENCE, Interval

RELABELLINGS = 200  # for agreement by chance
SPLITS, RESTARTS = 4, 4  # into halves, and of K-means in each: most of what this costs


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval; none where nothing tells how it would vary."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """What one probe says, or the mean over runs of what their probes say."""

    step: int
    separation: Estimate  # of sketches
    separation_directions: Estimate  # of sketches divided by their norms
    nmi: Estimate
    nmi_by_chance: float  # of the same domains with shuffled sources: the floor of nmi
    purity: Estimate
    purity_by_chance: float
    rows: int


@dataclass(frozen=True, slots=True)
class Perception:
    """A probe's figures, and what changes from probe to probe are made of."""

    source_N: Tensor
    whole: Separation
    directions: Separation
    figures: ProbeFigures


def perception(probe: Probe, num_domains: int, seed: int) -> Perception:
    """The figures of a probe whose sources all have LEAST_ROWS rows or more.

    Domains are found as by `dograph inspect`: spherical K-means of centred directions, here in
    coordinates made of the Gram, which have the same inner products and are fewer.
    """
    sketch_NK, source_N = probe.sketch_NK.double(), probe.source_N
    gram_NN = sketch_NK @ sketch_NK.T
    norm_N = gram_NN.diagonal().sqrt()
    norm_N = norm_N.masked_fill(norm_N == 0, 1)
    cosine_NN = gram_NN / (norm_N[:, None] * norm_N)
    whole, directions = separation(gram_NN, source_N), separation(cosine_NN, source_N)
    unit_NK = _coordinates(cosine_NN)
    label_N, _ = perceived(unit_NK, num_domains, seed)
    nmi, purity = agreement(label_N, source_N, num_domains, len(probe.sources))
    error_2 = agreement_error(unit_NK, source_N, num_domains, seed)
    chance_2 = agreement_by_chance(label_N, source_N, seed)
    figures = ProbeFigures(
        step=probe.step,
        separation=over_rows(whole, source_N),
        separation_directions=over_rows(directions, source_N),
        nmi=_share(nmi, error_2[0]),
        nmi_by_chance=float(chance_2[0]),
        purity=_share(purity, error_2[1]),
        purity_by_chance=float(chance_2[1]),
        rows=len(sketch_NK),
    )
    return Perception(source_N, whole, directions, figures)


def over_rows(found: Separation, source_N: Tensor) -> Estimate:
    """A separation, or a change of one, with its interval over other rows."""
    freedom = int(torch.bincount(source_N).min()) - 1
    return _estimate(found.value, found.standard_error(source_N), freedom)


def agreement_by_chance(label_N: Tensor, source_N: Tensor, seed: int) -> Tensor:
    """NMI and purity of domains against shuffled sources, the mean over shuffles, (2,).

    Neither is 0 by chance: with many domains and few rows both are well above it.
    """
    order_RN = np.tile(np.arange(len(source_N)), (RELABELLINGS, 1))
    stream(seed, "analyses", "chance").permuted(order_RN, axis=1, out=order_RN)
    origin_RNS = membership(source_N)[torch.from_numpy(order_RN)]
    return torch.stack(agreement_of_counts(membership(label_N).T @ origin_RNS)).mean(dim=1)


def agreement_error(unit_NK: Tensor, source_N: Tensor, num_domains: int, seed: int) -> Tensor:
    """Standard errors of NMI and purity of the domains of directions, by halves, (2,)."""
    cluster = KMeans(num_domains, normalise=True, restarts=RESTARTS, min_size=1, seed=seed)
    num_sources = int(source_N.max()) + 1

    def figures(row_H: Tensor) -> Tensor:
        direction_HK = F.normalize(unit_NK[row_H] - unit_NK[row_H].mean(dim=0))
        label_H = cluster(direction_HK, 0)
        return torch.stack(agreement(label_H, source_N[row_H], num_domains, num_sources))

    squares = []
    for split in range(SPLITS):
        key_N = torch.from_numpy(stream(seed, "analyses", "split", split).random(len(source_N)))
        order_N = key_N.argsort()
        order_N = order_N[source_N[order_N].argsort(stable=True)]  # by source, inside at random
        squares.append((figures(order_N[::2]) - figures(order_N[1::2])).square() / 4)
    return torch.stack(squares).mean(dim=0).sqrt()


def _coordinates(gram_NN: Tensor) -> Tensor:
    """Rows with these inner products; the largest entry of each column is positive."""
    value_N, vector_NN = torch.linalg.eigh(gram_NN)
    largest_1N = vector_NN.abs().argmax(dim=0, keepdim=True)
    sign_1N = vector_NN.gather(0, largest_1N).sign()
    coordinate_NK: Tensor = vector_NN * sign_1N * value_N.clamp_min(0).sqrt()
    return coordinate_NK


def _share(value: Tensor, error: Tensor) -> Estimate:
    """A figure between 0 and 1, where its interval ends too."""
    found = _estimate(float(value), float(error), SPLITS)
    return Estimate(found.value, cut(found.interval, SHARE))


def _estimate(value: float, error: float, freedom: int) -> Estimate:
    if not (math.isfinite(value) and math.isfinite(error)):
        return Estimate(value, None)
    special: Any = require("scipy.special", "plan")
    reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Estimate(value, Interval(value - reach, value + reach))
