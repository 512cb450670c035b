"""One weight per source, learned step by step: its average, its path, and the plan made of them.

Shapes: B samples, S sources.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, ValidationInfo
from torch import Tensor

from dograph.config import Options, Refresh
from dograph.domains.partition import all_finite
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Mixer
from dograph.mixers.fixed import sampling_mixture
from dograph.types import Mixture, Signals

MOST_POINTS = 50  # of a path; every second one is dropped when there are more
RECENT = 0.1  # of the steps so far: `drift` is how far the average moved in them
# L1 distances (`learned_weights`) above which the advice is to train longer. Weights that move at a
# constant speed hardly move their average: its drift is then a tenth of the other two distances.
SETTLED = {"drift": 0.05, "last_from_average": 0.1, "second_half_from_first": 0.1}
FEW_SOURCES = 1.5  # effective number of sources below which weights are called nearly one-hot
ONE_PROJECTION = "it compares sketches of different steps; set sketch.refresh=never"

Weights = dict[str, float]


def _listed(names: Any, info: ValidationInfo) -> Any:
    if names is not None and (isinstance(names, str) or not names):
        raise ConfigError(f"mixer.{info.field_name} must list the sources' names, got {names!r}")
    return names


Names = Annotated[Any, AfterValidator(_listed)]  # an option: names of sources, or None


class SourceOptions(Options):
    """Options of every mixer with one weight per source."""

    sources: Names = None  # or {name: training tokens}; None: from the plan


class SourceMixer(Mixer):
    """The common part of mixers with one learned weight per source.

    Weights and their average over the steps are S numbers on the device, in float64. The sources
    come with the plan, or with the option `sources` in the order of their indices.
    """

    option_type: ClassVar[type[SourceOptions]] = SourceOptions
    counts_first: ClassVar[bool] = False  # the average includes the weights before the first step
    kept: ClassVar[Mapping[str, str]] = {}  # more state: {name in the state: attribute}
    options: SourceOptions

    def __init__(self, **options: Any) -> None:
        self.options = self.option_type(**options)
        self.names: list[str] = []
        self.token_S: Tensor | None = None  # training tokens, where they are known
        self.count = 0  # weights in the average
        self.every = 1  # points of the path are this many counts apart
        self.path: list[tuple[Tensor, Tensor]] = []  # (weights, average) at every, 2 every, ...
        self.weight_S = self.average_S = torch.zeros(0, dtype=torch.float64)
        if self.options.sources is not None:
            self._open(self.options.sources)

    def plan(self, lab: Lab) -> Mixture:
        """Draw uniformly over sources, or by tokens: see `sampling`."""
        if self.names and set(self.names) != set(lab.tokens):
            raise ConfigError(
                f"mixer.sources names {self.names}, the corpus has {list(lab.tokens)}; leave it out"
            )
        self._open({name: float(n) for name, n in lab.tokens.items()})
        return sampling_mixture(self.option("sampling") or "uniform", lab.tokens)

    def _open(self, sources: Mapping[str, float] | Sequence[str]) -> None:
        """Start with the initial weights of these sources."""
        self.names = list(sources)
        if isinstance(sources, Mapping):
            self.token_S = torch.tensor(list(sources.values()), dtype=torch.float64)
        self.weight_S = self._initial()
        self.average_S = torch.zeros_like(self.weight_S)
        self.count, self.every, self.path = 0, 1, []
        if self.counts_first:
            self._count_in()

    def _initial(self) -> Tensor:
        """Weights before the first step: equal ones."""
        return torch.ones(len(self.names), dtype=torch.float64) / len(self.names)

    def _require(self, signals: Signals, name: str) -> Any:
        value = getattr(signals, name)
        if value is None:
            what = f"{type(self).__name__} weighs by {name}, which these signals do not have"
            raise ConfigError(f"{what}; fill Signals.{name}")
        return value.detach() if isinstance(value, Tensor) else value

    def _ready(self, signals: Signals, name: str = "source_B") -> Tensor:
        """Move the state to the signals' device; returns each sample's source, one-hot (B, S)."""
        source_B: Tensor = self._require(signals, name)
        if not self.names:
            raise ConfigError(
                f"{type(self).__name__} has one weight per source and does not know the sources: "
                "plan first, or name them with the option sources=[...]"
            )
        device = source_B.device
        if self.weight_S.device != device:
            for attribute, held in vars(self).items():
                if isinstance(held, Tensor):
                    setattr(self, attribute, held.to(device))
            self.path = [(w.to(device), a.to(device)) for w, a in self.path]
        index_S = torch.arange(len(self.names), device=device)
        return (source_B[:, None] == index_S).double()

    def known_token_S(self, option: str) -> Tensor:
        """The sources' training tokens, for an option that needs them."""
        if self.token_S is None:
            raise ConfigError(
                f"{option} needs the sources' sizes: plan first, or give "
                "sources={name: training tokens}"
            )
        return self.token_S

    def update(self, weight_S: Tensor, finite: Tensor) -> None:
        """Take these weights, or keep the old ones if something was not `finite`."""
        self.weight_S = torch.where(finite & all_finite(weight_S), weight_S, self.weight_S)
        self._count_in()

    def _count_in(self) -> None:
        """avg_n = (avg_{n-1} (n - 1) + a) / n."""
        self.count += 1
        n = self.count
        self.average_S = (self.average_S * (n - 1) + self.weight_S) / n
        if n % self.every == 0:
            self.path.append((self.weight_S, self.average_S))
        if len(self.path) > MOST_POINTS:
            self.path, self.every = self.path[1::2], 2 * self.every

    def share_out(
        self, each_S: Tensor, own_BS: Tensor, finite: Tensor, like_B: Tensor, **value_S: Tensor
    ) -> Tensor:
        """c_B proportional to `each_S`, the weight of one sample of a source; dtype of `like_B`.

        Equal weights if all are 0, or if something was not finite. `value_S` goes to the report.
        """
        self._report = self.weights_report(**value_S)
        weight_B = own_BS @ each_S
        total = weight_B.sum()
        usable = finite & (total > 0) & all_finite(weight_B)
        weight_B = torch.where(usable, weight_B / total, 1 / len(weight_B))
        return weight_B.to(torch.promote_types(like_B.dtype, torch.float32))

    def weights_report(self, **value_S: Tensor) -> dict[str, float | Tensor]:
        """Entropy of the average, its exponential, its drift, and `weights/SOURCE/quantity`."""
        entropy = -torch.xlogy(self.average_S, self.average_S).sum()
        report: dict[str, float | Tensor] = {
            "weights/entropy_nats": entropy,
            "weights/effective_sources": entropy.exp(),
        }
        if (before := newest_point(int((1 - RECENT) * self.count), self.every)) is not None:
            report["weights/drift"] = (self.average_S - self.path[before][1]).abs().sum()
        quantities = {"now": self.weight_S, "average": self.average_S, **value_S}
        for quantity, own_S in quantities.items():
            for name, value in zip(self.names, own_S.unbind(), strict=True):
                report[f"weights/{name}/{quantity}"] = value
        return report

    def state_dict(self) -> dict[str, Any]:
        points = self.path or [(self.weight_S[:0], self.average_S[:0])]
        state = {
            "tokens": self.token_S,
            "sources": self.names,
            "count": self.count,
            "counts_first": self.counts_first,
            "every": self.every,
            "weights": self.weight_S,
            "average": self.average_S,
            "path_weights": torch.stack([weight_S for weight_S, _ in points]),
            "path_averages": torch.stack([average_S for _, average_S in points]),
            **{name: getattr(self, attribute, None) for name, attribute in self.kept.items()},
        }
        return {name: value for name, value in state.items() if value is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names, self.token_S = list(state["sources"]), state.get("tokens")
        self.count, self.every = state["count"], state["every"]
        self.weight_S, self.average_S = state["weights"], state["average"]
        pairs = zip(state["path_weights"], state["path_averages"], strict=True)
        self.path = [pair for pair in pairs if len(pair[0])]
        for name, attribute in self.kept.items():
            setattr(self, attribute, state.get(name))


class GradientMixer(SourceMixer):
    """The common part of mixers that compare the sources' gradients, known by their sketches."""

    needs: ClassVar[frozenset[str]] = frozenset({"sketch", "source"})
    projection: int | None = None  # of the sketches that it keeps

    def refresh(self, asked: Refresh | None) -> Refresh:
        if asked not in (None, "never"):
            raise ConfigError(f"sketch.refresh={asked} with {self.options.owner}: {ONE_PROJECTION}")
        return "never"

    def _sums(self, signals: Signals, name: str = "source_B") -> tuple[Tensor, ...]:
        """Each sample's source, one-hot; of each source the samples, sum and sum of squares."""
        sketch_BK: Tensor = self._require(signals, "sketch_BK").double()
        if self.projection not in (None, signals.projection):
            raise ConfigError(f"a new projection in {self.options.owner}: {ONE_PROJECTION}")
        own_BS, self.projection = self._ready(signals, name), signals.projection
        square_B = sketch_BK.square().sum(dim=1)
        return own_BS, own_BS.sum(dim=0), own_BS.mT @ sketch_BK, own_BS.mT @ square_B


def newest_point(count: int, every: int) -> int | None:
    """Index of the newest point of a path among the first `count` weights, None without one."""
    return count // every - 1 if count >= every else None


def distance(one: Weights, other: Weights) -> float:
    """L1; twice the share of all draws that come from other sources."""
    return math.fsum(abs(weight - other[name]) for name, weight in one.items())


def means_by_source(value_B: Tensor, own_BS: Tensor) -> Tensor:
    """Mean of each source's samples, 0 where it has none. A matmul: it repeats bit for bit."""
    return own_BS.mT @ value_B.double() / own_BS.sum(dim=0).clamp_min(1)


def unbiased_gram(count_S: Tensor, sum_SK: Tensor, square_S: Tensor) -> Tensor:
    """Inner products <g_i, g_j> of the sources' true gradients, from samples s of each source.

    `sum_SK` has the sums of s, `square_S` those of |s|^2. Means m of different samples give
    unbiased products, but |m|^2 is too large by the variance of s over n: the noisiest source would
    seem the best aligned with itself. So the diagonal is the mean of <s, s'> over all pairs of two
    different samples, (|sum s|^2 - sum |s|^2) / (n (n - 1)), which may be negative; 0 without any.
    """
    mean_SK, pairs_S = sum_SK / count_S.clamp_min(1)[:, None], count_S * (count_S - 1)
    product_S = (sum_SK.square().sum(dim=1) - square_S) / pairs_S.clamp_min(1)
    gram_SS, own_S = mean_SK @ mean_SK.mT, torch.where(pairs_S > 0, product_S, 0.0)
    return gram_SS + (own_S - gram_SS.diagonal()).diag()


def learned_weights(
    state: Mapping[str, Any], sources: Sequence[str] | None = None
) -> dict[str, Any]:
    """JSON findings on a proxy, from the state in which its mixer ended, with tensors as lists.

    Only of `sources`, if given. `weights` are the average, `last` the weights at the end. L1
    distances: `drift`, of the average before the last tenth of the steps to the average;
    `last_from_average`; `second_half_from_first`, of the averages of both halves of the steps.
    None: too short a run. `entropy_nats` is that of the average, its exponential the effective
    number of sources. `trajectory` has at most 50 points: steps done, weights, their average.
    """
    names, every, count = state["sources"], state["every"], state["count"]
    kept = names if sources is None else sources
    before = int(state["counts_first"])

    def named(weight_S: Sequence[float]) -> Weights:
        return {name: w for name, w in zip(names, weight_S, strict=True) if name in kept}

    averages = [named(average_S) for average_S in state["path_averages"] if average_S]
    path = zip(state["path_weights"], averages, strict=False)
    average, last = named(state["average"]), named(state["weights"])
    distances: dict[str, float | None] = dict.fromkeys(SETTLED)
    distances["last_from_average"] = distance(last, average)
    if (index := newest_point(int((1 - RECENT) * count), every)) is not None:
        distances["drift"] = distance(average, averages[index])
    if (index := newest_point(count // 2, every)) is not None:
        part = 1 - (index + 1) * every / count  # that the second half is of the average
        distances["second_half_from_first"] = distance(average, averages[index]) / part
    entropy = -math.fsum(w * math.log(w) for w in average.values() if w > 0)
    return {
        "weights": average,
        "last": last,
        **distances,
        "entropy_nats": entropy,
        "effective_sources": math.exp(entropy),
        "trajectory": [
            {"steps": n * every - before, "weights": named(weight_S), "average": mean}
            for n, (weight_S, mean) in enumerate(path, start=1)
        ],
    }


def advice_on(findings: Mapping[str, Any], remedy: str) -> list[str]:
    """What to change, if anything; `remedy` is against nearly one-hot weights."""
    advice, average, effective = [], findings["weights"], findings["effective_sources"]
    far = [
        f"{name} {findings[name]:.3f} (limit {limit:g})"
        for name, limit in SETTLED.items()
        if findings[name] is not None and findings[name] > limit
    ]
    if far:
        moved = ", ".join(far)
        advice.append(f"weights have not settled (L1 distances): {moved}; train the proxy longer")
    if len(average) > 1 and effective < FEW_SOURCES:
        top = max(average, key=lambda name: average[name])
        advice.append(
            f"nearly all weight is on {top} ({average[top]:.2f}; "
            f"{effective:.2f} effective sources): {remedy}"
        )
    return advice
