"""Domain2Vec: the mixture whose domain vector comes closest to that of a target.

A domain vector has the share of a dataset in each of D meta-domains. That of a mixture r of sources
with vectors V_j is sum_j r_j V_j, so no model is trained to match the vector v of a target (Zhang
et al., ICML 2025, distribution alignment). The authors' meta-domains come from a classifier that is
not public: bring vectors of your own, or make some with examples/domain_vectors.py.

Shapes: S sources, D meta-domains.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dograph.config import Options
from dograph.errors import ConfigError, CorpusError, did_you_mean
from dograph.mixers.base import Lab, Mixer
from dograph.mixers.sweep import epoch_caps
from dograph.mixtures.tables import TableFile
from dograph.types import Mixture

SUM_WEIGHT = 1e4  # of the sum of the weights in least squares, in units of the largest difference


class Domain2VecOptions(Options, owner="domain2vec"):
    vectors: str | dict[str, list[float]] = Field({})  # a CSV file (`read_vectors`), or by name
    target: str = "target"  # the name of the target's vector
    max_epochs: float | None = Field(4.0, gt=0)


class Domain2Vec(Mixer):
    """Draw from the mixture whose domain vector is closest to the target's."""

    needs_target: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        self.options = Domain2VecOptions(**options)
        self.vectors: dict[str, list[float]] = self.settled(self.options.model_dump())["vectors"]
        sizes = {name: len(vector) for name, vector in self.vectors.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigError(f"mixer.vectors must have the same number of values each: {sizes}")
        self._vector(self.options.target)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """With the vectors instead of their file, so that the run can be repeated without it."""
        given = options.get("vectors")
        return {**options, "vectors": read_vectors(given) if isinstance(given, str) else given}

    def plan(self, lab: Lab) -> Mixture:
        vector_DS = np.array([self._vector(source) for source in lab.tokens]).T
        target_D = np.array(self._vector(self.options.target))
        caps = epoch_caps(lab, self.options.max_epochs)
        weight_S = closest_mixture(vector_DS, target_D, np.array(list(caps.values())))
        return Mixture.normalised(dict(zip(lab.tokens, weight_S.tolist(), strict=True)))

    def _vector(self, name: str) -> Sequence[float]:
        if name not in self.vectors:
            have = did_you_mean(name, self.vectors) if self.vectors else "give a CSV file"
            raise ConfigError(
                f'mixer.vectors has no "{name}"; it needs a vector of each source and of '
                f"mixer.target={self.options.target}; {have}"
            )
        return self.vectors[name]


def closest_mixture(
    vector_DS: np.ndarray, target_D: np.ndarray, cap_S: np.ndarray | float = 1.0
) -> np.ndarray:
    """The mixture r, (S,), with the smallest |V r - v|^2 and r_j <= cap_j.

    For weights that sum to s, |V r - s v|^2 + h^2 (s - 1)^2 is least at the same r up to its scale,
    whatever h, because the best s depends only on the distance. So bounded least squares finds it;
    only the caps need a sum near 1, and so a large h.
    """
    from scipy.optimize import lsq_linear

    away_DS = vector_DS - target_D[:, None]
    high = SUM_WEIGHT * (float(np.abs(away_DS).max()) or 1.0)
    rows = np.vstack([away_DS, np.full(away_DS.shape[1], high)])
    goal, most_S = np.append(np.zeros(len(away_DS)), high), np.maximum(cap_S, 1e-12)
    solved = lsq_linear(rows, goal, (0, most_S), method="bvls", tol=1e-15, max_iter=1000)
    weight_S = np.clip(solved.x, 0, cap_S)  # `most_S` is above 0, and rounding may pass a bound
    return np.asarray(weight_S / weight_S.sum())


def read_vectors(path: str) -> dict[str, list[float]]:
    """Vectors by name from a CSV file: a column `name`, then one for each meta-domain."""
    try:
        table = TableFile(Path(path), "losses")
    except CorpusError as error:
        raise ConfigError(
            f"mixer.vectors: {error}\nA table of vectors has a column `name`, a column for each "
            "meta-domain, and a row for each source and for the target"
        ) from error
    for name, row in zip(table.runs, np.isnan(table.value_NK), strict=True):
        if row.any():
            what = f'"{name}" has no number in the column "{table.names[row.argmax()]}"'
            raise ConfigError(f"mixer.vectors: {path}: {what}")
    return dict(zip(table.runs, table.value_NK.tolist(), strict=True))
