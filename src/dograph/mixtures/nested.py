"""From small runs to a table of predicted losses of the run one means to do.

Shapes: N mixtures, V targets (validation sets).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.laws import Curve
from dograph.mixtures.size_law import fit_size_laws
from dograph.mixtures.step_law import CurveLaws, fit_step_laws

Sharing = Literal["run", "all", "none"]
Place = tuple[float, str, str]  # size, mixture, target


@dataclass(frozen=True)
class Nested:
    """Losses predicted at the target size and tokens, to fit the mixing law on.

    `loss_NV` is NaN where the runs do not reach, and `notes` name these places. Errors are mean
    absolute ones, in nats: `*_in_sample` on points the laws were fitted on, `*_held_out` on points
    that laws fitted without them predicted (None where no point could be spared). Neither is the
    error at the target, which nobody has run.
    """

    mixtures: list[str]
    targets: list[str]
    loss_NV: np.ndarray
    step_in_sample: float
    step_held_out: float | None
    size_in_sample: float | None
    size_held_out: float | None
    notes: tuple[str, ...]


def nest(
    curves: Mapping[Place, Curve],
    *,
    size: float,
    tokens: float,
    share_step_alpha: Sharing = "run",
) -> Nested:
    """The losses of each mixture at the target size and tokens (Data Mixing Laws, nested use).

    `curves` holds losses over tokens by (size, mixture, target). First a step law for each curve,
    alpha shared by the targets of one run ("run", the authors' `valid`), by everything ("all") or
    by nothing ("none"), gives the loss at `tokens`; then a size law for each mixture and target,
    alpha shared by all, gives the loss at `size`. With runs of the target size only there is no
    size law. Sizes are non-embedding parameters.
    """
    if not curves:
        raise ConfigError("no curves to nest; give losses over tokens by size, mixture and target")
    if not (size > 0 and tokens > 0):
        raise ConfigError(f"the target is {size:g} parameters and {tokens:g} tokens; give both")
    groups = {
        "run": {place: place[:2] for place in curves},
        "all": None,
        "none": {place: place for place in curves},
    }
    steps = fit_step_laws(curves, shared=groups[share_step_alpha])
    at_tokens = {place: float(law.predict(tokens)) for place, law in steps.laws.items()}
    mixtures = list(dict.fromkeys(mixture for _, mixture, _ in curves))
    targets = list(dict.fromkeys(target for _, _, target in curves))
    loss_NV = np.full((len(mixtures), len(targets)), np.nan)
    notes, sizes = steps.notes, None
    if {own for own, _, _ in curves} == {size}:
        reached = {place[1:]: loss for place, loss in at_tokens.items()}
    else:
        sizes = _size_laws(at_tokens, size)
        reached = {pair: float(law.predict(size)) for pair, law in sizes.laws.items()}
        notes += sizes.notes
    for (mixture, target), loss in reached.items():
        loss_NV[mixtures.index(mixture), targets.index(target)] = loss
    for row, column in np.argwhere(np.isnan(loss_NV)):
        notes += (f"{mixtures[row]} on {targets[column]}: too few sizes to predict from",)
    return Nested(
        mixtures,
        targets,
        loss_NV,
        step_in_sample=steps.in_sample,
        step_held_out=steps.held_out,
        size_in_sample=sizes.in_sample if sizes else None,
        size_held_out=sizes.held_out if sizes else None,
        notes=notes,
    )


def _size_laws(at_tokens: Mapping[Place, float], target: float) -> CurveLaws[tuple[str, str]]:
    """Size laws of the pairs of mixture and target set that were run at two sizes or more."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (size, mixture, target_set), loss in at_tokens.items():
        points.setdefault((mixture, target_set), []).append((size, loss))
    curves = {
        pair: Curve(*(np.array(part) for part in zip(*sorted(known), strict=True)))
        for pair, known in points.items()
        if len(known) >= 2
    }
    if not curves:
        sizes = ", ".join(f"{size:g}" for size in sorted({place[0] for place in at_tokens}))
        raise ConfigError(
            f"all mixtures were run at one size each ({sizes}), and the target is {target:g}: run "
            "the same mixtures at three sizes, or at the target size"
        )
    return fit_size_laws(curves)
