"""RegMix: many tiny proxies, a regression from mixture to loss, the best of a simulation.

Liu et al., ICLR 2025. The authors train 512 proxies of a million parameters and regress with
LightGBM; which regression ranks left-out proxies best is asked of the table at hand here.
"""

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import Lab, Planner
from dograph.mixers.sweep import Sweep, table_of
from dograph.mixtures.proposals import DRAWS, TOP
from dograph.mixtures.surrogates import SURROGATES
from dograph.types import Mixture


class RegMixOptions(Sweep):
    """What is tried, and how many of the simulated mixtures the plan is the mean of."""

    owner: ClassVar[str] = "regmix"

    num_proxies: int = Field(64, ge=4)
    surrogate: str | None = None  # None: by cross-validation
    top: int = Field(TOP, ge=1)
    draws: int = Field(DRAWS, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.draws < self.top:
            raise ConfigError(
                f"mixer.draws={self.draws}: give a whole number of at least mixer.top={self.top}"
            )
        if self.surrogate is not None and self.surrogate not in SURROGATES:
            near = did_you_mean(str(self.surrogate), SURROGATES)
            raise ConfigError(f"mixer.surrogate={self.surrogate!r}; {near}")
        return self


class RegMix(Planner):
    """Draw from the mean of the simulated mixtures whose predicted loss is lowest."""

    needs_losses: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = RegMixOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        options = self.options
        mixtures = options.mixtures(lab)
        results = lab.train(options.proxies(mixtures, "mixture", {}))
        self.table = table_of(mixtures, [result.losses for result in results], list(lab.tokens))
        own = {"draws": options.draws, "top": options.top}
        proposal = options.propose("regmix", lab, self.table, options.surrogate, **own)
        self.findings = proposal.findings
        return proposal.mixture
