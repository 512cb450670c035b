"""DoReMi: a mixture from a reference and a proxy run (Xie et al., 2023)."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Fraction, Options
from dograph.domains.partition import all_finite
from dograph.mixers import source_weights
from dograph.mixers.base import Lab, Planner, Proxy, require_sources
from dograph.types import Mixture, Signals


class DoReMiUpdate(Options):
    """Options of the weight update, with the defaults of the authors' code."""

    eta: float = Field(1.0, gt=0)
    smoothing: Fraction = 1e-3  # c
    loss_normalization: Literal["global", "per_source"] = "global"
    clip_excess_per: Literal["token", "source"] = "token"
    sampling: Literal["uniform", "natural"] = "uniform"
    initial_weights: Literal["sampling", "uniform"] = "sampling"
    mean_over: Literal["tokens", "samples"] = "tokens"


class DoReMiProxyOptions(DoReMiUpdate, source_weights.SourceOptions, owner="doremi-proxy"):
    reference: str | None = None


class DoReMiProxy(source_weights.SourceMixer):
    """Raise the weight of sources on which the model is still worse than a reference.

        s_d    = mean over the source's tokens of max(l_t - ref_t, 0)    (as before if absent)
        log a <- log a + eta s; a <- softmax; a <- (1 - c) a + c / S

    The result is the average of a over the steps, a_0 included: the sampling shares p, or 1 / S
    with `initial_weights: uniform`. A token of source d counts
    a_d / p_d in the same step, divided by the sum over all tokens
    (`loss_normalization: global`, the authors' code), or a_d / (its tokens in the batch), which is
    the paper's mean by source (`per_source`). A source not seen yet has s_d = log(vocab_size).

    `clip_excess_per: source` clips the difference of the source's mean losses instead of the
    tokens' (as the code of DoGE and of Sow et al. does, with eta 0.1 and c 0).

    Samples of different lengths count by their tokens if `Signals.num_tokens_B` has them, or alike
    with `mean_over: samples`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss", "reference_loss", "source"})
    option_type = DoReMiProxyOptions
    counts_first: ClassVar[bool] = True
    kept: ClassVar[dict[str, str]] = {"excess": "excess_S"}
    options: DoReMiProxyOptions
    excess_S: Tensor | None = None  # s_d, as last seen

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reference = self.options.reference

    def _initial(self) -> Tensor:
        natural = self.options.sampling == "natural" and self.options.initial_weights == "sampling"
        if natural and self.token_S is not None:  # else they come with the plan
            return self.token_S / self.token_S.sum()
        return super()._initial()

    def weigh(self, signals: Signals) -> Tensor:
        loss_B: Tensor = self._require(signals, "loss_B")
        own_BS = self._ready(signals)
        if self.options.mean_over == "tokens" and signals.num_tokens_B is not None:
            own_BS = own_BS * signals.num_tokens_B[:, None]
        count_S = own_BS.sum(dim=0)
        if self.options.clip_excess_per == "token":
            compared_B: Tensor = self._require(signals, "excess_loss_B")
            mean_S = source_weights.means_by_source(compared_B, own_BS)
        else:
            compared_B = self._require(signals, "reference_loss_B")
            mean_S = source_weights.means_by_source(loss_B - compared_B, own_BS).clamp_min(0)
        finite = all_finite(loss_B, compared_B)
        if self.excess_S is None:
            vocab_size: int = self._require(signals, "vocab_size")
            if self.options.sampling == "natural" and self.options.initial_weights == "sampling":
                self.known_token_S("mixer.sampling=natural")
            drawn_S = torch.ones_like(mean_S) if self.token_S is None else self.token_S > 0
            # A source that was not seen yet has the excess of a uniform prediction.
            self.excess_S = math.log(vocab_size) * drawn_S.to(mean_S)
        self.excess_S = excess_S = torch.where(finite & (count_S > 0), mean_S, self.excess_S)
        log_S = self.weight_S.log() + self.options.eta * excess_S
        weight_S, c = torch.softmax(log_S, dim=0), self.options.smoothing
        self.update((1 - c) * weight_S + c / len(weight_S), finite)
        if self.options.loss_normalization == "per_source":
            each_S = self.weight_S / count_S.clamp_min(1)
        elif self.options.sampling == "natural":
            token_S = self.known_token_S("mixer.sampling=natural").clamp_min(1)
            each_S = self.weight_S / (token_S / token_S.sum())
        else:
            each_S = self.weight_S / torch.full_like(count_S, 1 / len(count_S))
        return self.share_out(each_S, own_BS, finite, loss_B, excess_nats=excess_S)

    def refuses_edits(self) -> str | None:
        if self.options.loss_normalization != "global":
            return None
        return (
            "with mixer.loss_normalization=global divides by the shares of "
            f"mixer.sampling={self.options.sampling}"
        )


REMEDY = (
    "lower mixer.eta (to 0.1, say), and use batches that hold every source: with few samples of a "
    "source its excess is mostly noise"
)


class DoReMiOptions(DoReMiUpdate, owner="doremi"):
    """Options of the rounds; the others are those of the proxy."""

    rounds: int = Field(1, ge=1, le=100)
    tolerance: Fraction = 1e-3
    reference_weights: Mapping[str, float] | None = None
    seed: int = 0


class DoReMi(Planner):
    """Train a reference and a proxy that upweights sources where it is worse; average its weights.

    The reference of round 1 is drawn naturally (or by `reference_weights`), that of a later round
    by the weights of the round before. Rounds end when no weight differs from the reference's by
    `tolerance`, or after `rounds`. The plan is the last round's average.
    """

    def __init__(self, **options: Any) -> None:
        self.options = DoReMiOptions(**options)
        given = self.options.reference_weights
        self.reference_weights = None if given is None else Mixture.normalised(given).weights

    def plan(self, lab: Lab) -> Mixture:
        rounds: list[dict[str, Any]] = []
        drawn = self.reference_weights  # None: naturally
        require_sources("reference_weights", drawn or (), lab.tokens)
        weights = lab.tokens if drawn is None else drawn
        total = sum(weights.values())
        reference = {name: weights.get(name, 0) / total for name in lab.tokens}
        self.findings = findings = {"rounds": rounds, "converged": False}
        for number in range(1, self.options.rounds + 1):
            found = self._round(lab, number, drawn)
            average = found["weights"]
            change = max(abs(average[name] - reference[name]) for name in reference)
            rounds.append({"reference": reference, "max_change": change, **found})
            reference = drawn = average
            if change < self.options.tolerance:
                findings["converged"] = True
                break
        advice = source_weights.advice_on(found, REMEDY)
        if self.options.rounds > 1 and not findings["converged"]:
            advice.append(
                f"after {len(rounds)} rounds a weight still changed by {change:.4f}, more than "
                f"mixer.tolerance={self.options.tolerance:g}: raise mixer.rounds; or rounds may "
                "not converge on this corpus"
            )
        findings["advice"] = advice
        return Mixture.normalised(average)

    def _round(
        self, lab: Lab, number: int, reference: Mapping[str, float] | None
    ) -> dict[str, Any]:
        """One reference, then one proxy: the findings on its weights."""
        seed = self.options.seed + 2 * (number - 1)
        mixer: dict[str, Any] = {"name": "natural"}
        if reference is not None:
            mixer = {"name": "static", "weights": dict(reference)}
        [trained] = lab.train([Proxy(f"round {number}: reference", mixer, seed)])
        options = {"name": "doremi-proxy", "reference": trained.model}
        options |= self.options.model_dump(include=set(DoReMiUpdate.model_fields))
        label = f"round {number}: proxy, eta {self.options.eta:g}"
        [result] = lab.train([Proxy(label, options, seed + 1)])
        return source_weights.learned_weights(result.state)
