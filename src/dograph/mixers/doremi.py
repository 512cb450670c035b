"""DoReMi: a mixture from a reference and a proxy run (Xie et al., 2023)."""

from collections.abc import Mapping, Sequence
from typing import Any

from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Planner, Proxy
from dograph.mixers.doremi_proxy import DoReMiProxy
from dograph.mixers.outcome import Outcome, Weights, as_values, sensitivity
from dograph.option_checks import require_number, require_whole
from dograph.types import Mixture

REMEDY = (
    "lower mixer.eta (to 0.1, say), and use batches that hold every source: with few samples of a "
    "source its excess is mostly noise"
)
DATA = (
    "every proxy run has a seed of its own, so the DoReMi proxy reads its data in another order "
    "than its reference (the authors reversed the shards)"
)


class DoReMi(Planner):
    """Train a reference and a proxy that upweights sources where it is worse; average its weights.

    Round 1's reference is drawn naturally (or by `reference_weights`), that of a later round by the
    weights of the round before. Rounds end when no weight differs from the reference's by
    `tolerance`, or after `rounds`. The plan is the last round's average; training with it draws by
    it and counts all samples alike.

    `eta` may be a list: in round 1 there is one proxy for each value, with the same reference and
    seed; the first value is the one that counts, and how far the others lead away is in the
    findings.
    """

    def __init__(
        self,
        *,
        rounds: int = 1,
        tolerance: float = 1e-3,
        eta: float | Sequence[float] = 1.0,
        smoothing: float = 1e-3,
        normaliser: str = "global",
        excess: str = "token",
        sampling: str = "uniform",
        reference_weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_whole("mixer.rounds", rounds, least=1, most=100)
        require_number("mixer.tolerance", tolerance, least=0, most=1)
        self.rounds, self.tolerance, self.seed = rounds, tolerance, seed
        self.etas = as_values("eta", eta)
        self.reference_weights = (
            None if reference_weights is None else Mixture.normalised(reference_weights).weights
        )
        self.options: dict[str, Any] = {
            "smoothing": smoothing,
            "normaliser": normaliser,
            "excess": excess,
            "sampling": sampling,
        }
        for value in self.etas:  # refuses now what its proxy would refuse later
            DoReMiProxy(eta=value, **self.options)

    def plan(self, lab: Lab) -> Mixture:
        rounds: list[dict[str, Any]] = []
        outcome, reference = None, self._first_reference(lab)
        drawn = self.reference_weights  # None: naturally
        self.findings = {"rounds": rounds, "converged": False, "data": DATA}
        for number in range(1, self.rounds + 1):
            outcomes = self._round(lab, number, drawn)
            outcome = outcomes[0]
            change = max(abs(outcome.average[name] - reference[name]) for name in reference)
            rounds.append({"reference": reference, "max_change": change, **outcome.findings()})
            if number == 1 and len(self.etas) > 1:
                self.findings["sensitivity"] = {"eta": sensitivity(self.etas, outcomes)}
            reference = drawn = outcome.average
            if change < self.tolerance:
                self.findings["converged"] = True
                break
        assert outcome is not None
        self.findings["advice"] = self._advice(outcome, rounds)
        return outcome.mixture

    def _first_reference(self, lab: Lab) -> Weights:
        given = self.reference_weights
        if given is not None and set(given) - set(lab.tokens):
            raise ConfigError(
                f"mixer.reference_weights names {sorted(set(given) - set(lab.tokens))}, which the "
                f"corpus does not have; it has {list(lab.tokens)}"
            )
        weights = lab.tokens if given is None else given
        total = sum(weights.values())
        return {name: weights.get(name, 0) / total for name in lab.tokens}

    def _round(self, lab: Lab, number: int, reference: Mapping[str, float] | None) -> list[Outcome]:
        """One reference, then one proxy for each eta (in later rounds for the first)."""
        seed = self.seed + 2 * (number - 1)
        mixer: dict[str, Any] = {"name": "natural"}
        if reference is not None:
            mixer = {"name": "static", "weights": dict(reference)}
        [trained] = lab.train([Proxy(f"round {number}: reference", mixer, seed)])
        options = {"name": "doremi-proxy", "reference": trained.model, **self.options}
        etas = self.etas if number == 1 else self.etas[:1]
        proxies = [
            Proxy(f"round {number}: proxy, eta {eta:g}", {**options, "eta": eta}, seed + 1)
            for eta in etas
        ]
        return [Outcome.of(result.state) for result in lab.train(proxies)]

    def _advice(self, outcome: Outcome, rounds: list[dict[str, Any]]) -> list[str]:
        advice = outcome.advice(REMEDY)
        if self.rounds > 1 and not self.findings["converged"]:
            advice.append(
                f"after {len(rounds)} rounds a weight still changed by "
                f"{rounds[-1]['max_change']:.4f}, more than mixer.tolerance={self.tolerance:g}: "
                "raise mixer.rounds, or take it that rounds do not settle on this corpus"
            )
        return advice
