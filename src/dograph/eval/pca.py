"""The picture of Figure 1 in coordinates: principal components of gradient directions.

Sketches are divided by their norms and centred on the mean of these directions, as the paper's
picture is of directions. A random projection keeps inner products, so these components are close
to those of the gradients themselves.

Shapes: N rows, K sketch, C components.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.errors import ConfigError, did_you_mean
from dograph.eval.probe import probed_steps, read_probe

Basis = Literal["last", "own"]
ROUNDING = 1e-12  # components with less than this part of the variance have no direction


@dataclass(frozen=True, slots=True)
class Principal:
    """Rows on a few axes."""

    coordinate_NC: Tensor  # float64
    explained_C: Tensor  # share of the rows' variance along each axis; 0 where there is none


@dataclass(frozen=True, slots=True)
class ProbePCA:
    """The probes of a run on principal axes, step by step."""

    basis: Basis
    sources: list[str]
    source_N: Tensor  # index into sources, the same at every step
    at: dict[int, Principal]  # by step


@dataclass(frozen=True, slots=True)
class _Axes:
    origin_K: Tensor
    axis_KC: Tensor  # orthonormal; zero where the rows have no more directions


def principal(sketch_NK: Tensor, num: int = 2) -> Principal:
    """The first `num` principal components of the directions of sketches.

    With X the centred directions and X X' = U L U', coordinates are U sqrt(L). The sign of an
    axis is such that its coordinate of largest absolute value (the first of equals) is positive.
    """
    _check_num(sketch_NK, num)
    direction_NK = _directions(sketch_NK)
    return _on(_axes(direction_NK, num), direction_NK)


def probe_pca(
    run: Path, steps: Sequence[int] | None = None, basis: Basis = "last", num: int = 2
) -> ProbePCA:
    """Principal coordinates of a run's probes; all of them where `steps` is None.

    basis="own": axes and origin of each step are its own, so only shapes can be compared.
    basis="last": axes and origin are those of the last of these steps, for all; steps can be
    compared, and a drift of the whole cloud is seen. Early probes then need not lie along these
    axes: `explained_C` is the share of their own variance that does.
    """
    if basis not in get_args(Basis):
        raise ConfigError(f'basis="{basis}" is not known; {did_you_mean(basis, get_args(Basis))}')
    chosen = probed_steps(run) if steps is None else sorted(set(steps))
    if not chosen:
        raise ConfigError(f"no step was given; {run} has probes of {probed_steps(run)}")
    probes = {step: read_probe(run, step) for step in chosen}
    last = probes[chosen[-1]]
    _check_num(last.sketch_NK, num)
    direction_of = {step: _directions(probe.sketch_NK) for step, probe in probes.items()}
    common = _axes(direction_of[chosen[-1]], num)
    at = {
        step: _on(common if basis == "last" else _axes(direction_NK, num), direction_NK)
        for step, direction_NK in direction_of.items()
    }
    return ProbePCA(basis, last.sources, last.source_N, at)


def _directions(sketch_NK: Tensor) -> Tensor:
    return F.normalize(sketch_NK.double())


def _axes(direction_NK: Tensor, num: int) -> _Axes:
    origin_K = direction_NK.mean(dim=0)
    centred_NK = direction_NK - origin_K
    value_N, vector_NN = torch.linalg.eigh(centred_NK @ centred_NK.T)
    value_C, vector_NC = value_N.flip(0)[:num], vector_NN.flip(1)[:, :num]
    largest_1C = vector_NC.abs().argmax(dim=0, keepdim=True)
    vector_NC = vector_NC * vector_NC.gather(0, largest_1C).sign()
    flat_C = value_C <= ROUNDING * len(direction_NK)  # directions have length 1
    axis_KC = centred_NK.T @ vector_NC / value_C.masked_fill(flat_C, 1).sqrt()
    return _Axes(origin_K, axis_KC.masked_fill(flat_C, 0))


def _on(axes: _Axes, direction_NK: Tensor) -> Principal:
    coordinate_NC = (direction_NK - axes.origin_K) @ axes.axis_KC
    total = direction_NK.var(dim=0, correction=0).sum()
    along_C = coordinate_NC.var(dim=0, correction=0)
    return Principal(coordinate_NC, torch.where(total > ROUNDING, along_C / total, 0.0))


def _check_num(sketch_NK: Tensor, num: int) -> None:
    if sketch_NK.ndim != 2 or not bool(sketch_NK.isfinite().all()):
        raise ConfigError(
            f"sketches must be finite and (rows, K), got {tuple(sketch_NK.shape)} with "
            f"{int((~sketch_NK.isfinite()).sum())} values that are not"
        )
    most = min(sketch_NK.shape)
    if not 1 <= num <= most:
        raise ConfigError(
            f"num={num}: sketches of shape {tuple(sketch_NK.shape)} have 1 to {most} components"
        )
