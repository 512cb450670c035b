"""The mixture at which fitted laws are lowest: exact, and what is told of the laws.

Shapes: S sources, V targets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dograph.mixtures.checks import grouped
from dograph.mixtures.exponential import ExponentialLaw
from dograph.mixtures.optimum import find_optimum
from dograph.mixtures.surrogate import Fitted
from dograph.mixtures.transfer import TransferLaw

BySource = Callable[[np.ndarray], dict[str, float]]


def lowest(
    fitted_V: Sequence[Fitted],
    shares: Mapping[str, float],
    cap_S: np.ndarray,
    by_source: BySource,
    notes: list[str],
) -> tuple[np.ndarray, dict[str, Any]]:
    """The optimum of the laws' sum by shares within the caps, and findings; notes are added to."""
    laws = [law for law in fitted_V if isinstance(law, ExponentialLaw | TransferLaw)]
    assert len(laws) == len(fitted_V)
    optimum = find_optimum(laws, np.array(list(shares.values())), cap_S)
    if not optimum.unique:
        notes.append(
            "several mixtures have the lowest predicted loss; the proposal is one in their middle"
        )
    notes.extend(grouped({n: law.notes for n, law in zip(shares, laws, strict=True)}, "law"))
    said = {name: _told(law, by_source) for name, law in zip(shares, laws, strict=True)}
    findings = {"gap": optimum.gap, "unique": optimum.unique, "laws": said}
    return np.minimum(optimum.weight_S, cap_S), findings


def _told(law: ExponentialLaw | TransferLaw, by_source: BySource) -> dict[str, Any]:
    """A law's parameters, free of gauge and unit."""
    if isinstance(law, ExponentialLaw):
        own: dict[str, Any] = {"log_k_plus_t": by_source(law.at_sources)}
    else:
        own = {"log_k": law.log_k, "alpha": law.alpha, "worth": by_source(law.worth_S)}
    return {"c": law.c, **own, "converged": law.converged}
