"""DSIR: draw by the documents' scores towards trusted text (Xie et al., 2023), over strata.

`dograph data prepare --toward FILES --strata N` scores the documents and divides each source by
score: 0 is a threshold that nine in ten trusted documents reach, 1 their median.

Shapes: S strata.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dograph.config import Options
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Mixer
from dograph.mixtures.proposals import bounded
from dograph.types import Mixture


class DSIROptions(Options, owner="dsir"):
    rule: Literal["resample", "filter"] = "resample"
    strength: float = Field(1.0, ge=0)  # of resample
    keep_sources: bool = True  # sources are drawn by tokens, only strata inside them by score
    max_epochs: float = Field(5.0, gt=0)


class DSIR(Mixer):
    """Draw more from strata that resemble the trusted text, or only from those.

        resample:  q_s ~ n_s exp(strength score_s)
        filter:    q_s ~ n_s if score_s >= 0, else 0

    With `keep_sources` q is scaled so that each source keeps its share of the tokens; a source
    without a stratum that passes the filter is drawn from its best one.
    """

    needs_target: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        self.options = DSIROptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        if missing := sorted(set(lab.strata) - set(lab.scores)):
            raise ConfigError(
                f"mixer.name=dsir draws by scores, and the corpus has none for {missing[0]}; "
                "prepare it with --toward FILES --strata 16, FILES being text that you trust"
            )
        names, token_S = list(lab.strata), np.array([*lab.strata.values()], np.float64)
        score_S = np.array([lab.scores[name] for name in names])
        sources = [n if n in lab.tokens else n.rpartition("/")[0] for n in names]
        group_S = np.array(sources if self.options.keep_sources else [""] * len(names))
        share_S = token_S.copy()
        for own in (group_S == group for group in np.unique(group_S)):
            relative_S = score_S[own] - score_S[own].max()
            tilt_S = np.exp(self.options.strength * relative_S)
            if self.options.rule == "filter":
                tilt_S = ((score_S[own] >= 0) | (relative_S == 0)).astype(np.float64)
            share_S[own] *= tilt_S * token_S[own].sum() / (tilt_S @ token_S[own])
        most_S = self.options.max_epochs * token_S / max(lab.budget, 1)
        share_S = bounded(share_S / share_S.sum(), low_S=np.zeros(len(names)), high_S=most_S)
        return Mixture.normalised(dict(zip(names, share_S.tolist(), strict=True)))
