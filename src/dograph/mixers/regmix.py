"""RegMix: many tiny proxies, a regression from mixture to loss, the best of a simulation.

Liu et al., ICLR 2025. The authors train 512 proxies of a million parameters and regress with
LightGBM; which regression ranks left-out proxies best is asked of the table at hand here.
"""

from typing import ClassVar

from dograph.mixers.base import Lab, Planner
from dograph.mixers.sweep import Sweep, table_of
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.proposals import DRAWS, TOP, Target
from dograph.mixtures.surrogates import SURROGATES
from dograph.option_checks import require_one_of, require_whole
from dograph.types import Mixture


class RegMix(Planner):
    """Draw from the mean of the simulated mixtures whose predicted loss is lowest.

    `target`: a source, `mean` over sources, `natural` (by tokens), a list, or shares by name.
    """

    needs_losses: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_proxies: int = 64,
        target: Target = "mean",
        surrogate: str | None = None,
        top: int = TOP,
        draws: int = DRAWS,
        max_usage: float = 15.0,
        max_epochs: float | None = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_whole("mixer.top", top, least=1)
        require_whole("mixer.draws", draws, least=top)
        if surrogate is not None:
            require_one_of("mixer.surrogate", surrogate, SURROGATES)
        self.surrogate, self.top, self.draws = surrogate, top, draws
        self.sweep = Sweep(
            num_proxies=num_proxies,
            target=target,
            max_usage=max_usage,
            max_epochs=max_epochs,
            seed=seed,
        )

    def plan(self, lab: Lab) -> Mixture:
        mixtures = self.sweep.mixtures(lab)
        results = lab.train(self.sweep.proxies(mixtures, "mixture", {}))
        self.table = table_of(mixtures, [result.losses for result in results], list(lab.tokens))
        proposal = propose_from_table(
            "regmix",
            self.table,
            target=self.sweep.shares(lab, self.table),
            prior=lab.tokens,
            caps=self.sweep.caps(lab),
            surrogate=self.surrogate,
            seed=self.sweep.seed,
            draws=self.draws,
            top=self.top,
        )
        self.findings = proposal.findings
        return proposal.mixture
