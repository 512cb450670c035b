"""DoGE: a mixture from one proxy run that follows gradient alignment (Fan et al., 2024)."""

from collections.abc import Sequence
from typing import Any

from dograph.mixers.base import Lab, Planner, Proxy
from dograph.mixers.doge_proxy import DoGEProxy
from dograph.mixers.outcome import Outcome, as_values, sensitivity
from dograph.mixers.source_weights import require_sources
from dograph.types import Mixture

REMEDY = "raise mixer.mu (to 0.05 or 0.1, say)"
# Absent sources keep their sketches, so these need one projection; nobody will look at probes.
SETTINGS = {"sketch": {"refresh": "never"}, "probe": {"rows": 0}}


class DoGE(Planner):
    """Train a proxy that upweights sources whose gradients help the targets; average its weights.

    `targets` None: good on all sources. Names: good on those, which are drawn in the proxy but are
    no part of the plan. `mu` may be a list: one proxy for each value, with the same seed; the first
    is the one that counts, and how far the others lead away is in the findings.
    """

    def __init__(
        self,
        *,
        mu: float | Sequence[float] = 0.01,
        targets: Sequence[str] | None = None,
        clip: float = 5.0,
        exclude_self: bool = False,
        smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.mus, self.seed = as_values("mu", mu), seed
        self.targets = None if targets is None else list(targets)
        self.options: dict[str, Any] = {
            "targets": targets,
            "clip": clip,
            "exclude_self": exclude_self,
            "smoothing": smoothing,
        }
        for value in self.mus:  # refuses now what its proxy would refuse later
            DoGEProxy(mu=value, **self.options)

    def plan(self, lab: Lab) -> Mixture:
        require_sources("targets", self.targets or [], list(lab.tokens))
        trained = [name for name in lab.tokens if name not in (self.targets or [])]
        proxies = [
            Proxy(f"proxy, mu {mu:g}", self._mixer(mu), self.seed, SETTINGS) for mu in self.mus
        ]
        outcomes = [Outcome.of(result.state, trained) for result in lab.train(proxies)]
        self.findings = outcomes[0].findings() | {"advice": outcomes[0].advice(REMEDY)}
        if len(self.mus) > 1:
            self.findings["sensitivity"] = {"mu": sensitivity(self.mus, outcomes)}
        return outcomes[0].mixture

    def _mixer(self, mu: float) -> dict[str, Any]:
        given = {name: value for name, value in self.options.items() if value is not None}
        return {"name": "doge-proxy", "mu": mu, **given}
