"""Mixer: the base class of every method, and the method `natural`.

A method decides at most three things: what to draw from (`plan`, before training), the weight of
each sample (`weigh`, each step), and a new mixture to draw from (`remix`, every few steps).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dograph.config import Refresh, RunConfig
from dograph.errors import require_known
from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture, Signals

if TYPE_CHECKING:  # torch takes seconds to import; refusing a misspelled name does not need it
    from torch import Tensor

    from dograph.domains.graph import DomainGraph

# Metrics of a step by name; tensors stay on the device until they are written (see `LateReport`).
Report = Mapping[str, "float | Tensor"]
Metrics = dict[str, "float | Tensor"]

# The values of `Mixer.needs`. The step computes only what the mixer needs.
SIGNALS = frozenset({"loss", "reference_loss", "sketch", "source"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """A small run that a plan requests from its lab."""

    label: str  # shown to users
    mixer: Mapping[str, Any]  # its mixer's name and options, as in a configuration
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, over those of the lab


@dataclass(frozen=True, slots=True)
class ProxyResult:
    """The result of a proxy."""

    losses: Mapping[str, float]  # last validation loss of each source, nats
    curve: Sequence[tuple[int, Mapping[str, float]]]  # (steps made, losses) at every validation
    state: Mapping[str, Any]  # of its mixer at the end; tensors as lists
    model: str  # folder of its model
    parameters: int  # of its model, without embeddings
    tokens: int  # that it was trained on


class Lab(Protocol):
    """What a plan can know and do before training. Passed in, so mixers never import training."""

    tokens: Mapping[str, int]  # training tokens of each source
    strata: Mapping[str, int]  # training tokens of each stratum; mixtures may name these too
    budget: int  # tokens that the run will draw
    steps: int  # of the run
    proxy_steps: int  # of a proxy, unless its settings say otherwise

    @property
    def scores(self) -> Mapping[str, float]:
        """Of strata, towards trusted text (see DSIR); empty without --toward."""

    @property
    def parameters(self) -> int:
        """Parameters of the run's model, without embeddings."""

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Train these, in parallel if possible."""


class Mixer:
    """Natural mixing: draw by tokens, equal sample weights. A subclass overrides what differs."""

    needs: ClassVar[frozenset[str]] = frozenset()
    needs_proxies: ClassVar[bool] = False  # its plan comes from small runs: a `Planner`
    needs_losses: ClassVar[bool] = False  # it learns from the proxies' validation losses
    needs_target: ClassVar[bool] = False  # its plan is for data that the user must name
    has_domains: ClassVar[bool] = False  # it groups samples: `graph` and `locate` show them
    reads_mixtures: ClassVar[bool] = False  # its options may name mixture files (`inlined`)
    reference: str | None = None  # the model of `reference_loss`
    _report: Report = MappingProxyType({})

    def plan(self, lab: Lab) -> Mixture:
        """The initial mixture."""
        return Mixture.normalised({name: float(n) for name, n in lab.tokens.items()})

    def weigh(self, signals: Signals) -> "Tensor":
        """Weight of each sample of the world batch: (B,), >= 0, summing to 1."""
        import torch

        equal = 1 / signals.num_samples
        return torch.full((signals.num_samples,), equal, device=signals.device)

    def remix(self, signals: Signals) -> Mixture | None:
        """The mixture after `signals.step`, or None for no change."""
        return None

    def schedule(self) -> Mapping[int, Mixture]:
        """Mixtures that `remix` will return, by their first step (`Signals.counted`), if known."""
        return {}

    def warm_up(self, steps: int) -> None:
        """Called once before the run with its length, for a warm-up in proportion to it."""

    @property
    def changes_sampling(self) -> bool:
        """Whether it may change the mixture during a run (`remix`)."""
        return type(self).remix is not Mixer.remix

    @property
    def needs_before_weights(self) -> frozenset[str]:
        """Signals that `weigh` needs; losses that only `remix` needs come with the backward."""
        return self.needs - ({"loss"} if type(self).weigh is Mixer.weigh else set())

    @property
    def requires_sources(self) -> bool:
        """Whether it needs sources for weights, not only for its report."""
        return "source" in self.needs

    @property
    def inputs(self) -> list[str]:
        """What it needs besides text, in words for users."""
        draws_by_source = type(self).plan is not Mixer.plan and self.option("sampling") != "natural"
        needed = {
            "labels": self.requires_sources or draws_by_source,
            "a reference": "reference_loss" in self.needs,
            "proxies": self.needs_proxies,
            "validation": self.needs_losses,
            "a target": self.needs_target,
        }
        return [name for name, is_needed in needed.items() if is_needed]

    def refuses_edits(self) -> str | None:
        """Why a user cannot change the mixture during a run (after "NAME ..."), or None."""
        return "decides itself what is drawn (it has a `remix`)" if self.changes_sampling else None

    def refuses_lagged(self) -> str | None:
        """Why it cannot weigh a micro-batch alone (after "NAME ..."), or None.

        A mixer that needs no signals has equal weights; any other one needs a `weigh_lagged`.
        """
        if not self.needs or type(self).weigh_lagged is not Mixer.weigh_lagged:
            return None
        return "would have to weigh micro-batches before it has seen them all"

    def cautions(self, config: RunConfig) -> list[str]:
        """Why it can hardly work with these settings, one sentence each; shown before a run."""
        return []

    def weigh_lagged(self, signals: Signals, num_samples: int) -> "Tensor":
        """Weights (b,) of one micro-batch of a batch of `num_samples`, from earlier steps.

        With accumulation lagged this replaces `weigh`, and `observe` is called afterwards. Over all
        micro-batches the weights sum to 1 on average.
        """
        return self.weigh(replace(signals, num_samples=num_samples))[: signals.num_samples]

    def observe(self, signals: Signals, weight_B: "Tensor") -> None:
        """Update the state with a world batch that was weighed by `weigh_lagged`."""

    def refresh(self, asked: Refresh | None) -> Refresh:
        """When the projection of the sketches is redrawn; None: as the mixer needs.

        A mixer that compares sketches of different steps raises an error if that is too often.
        """
        return "never" if asked is None else asked

    @property
    def domains_last(self) -> bool:
        """Whether a number is the same domain in every step, not a rank within one batch."""
        return True

    def graph(self, sources: Sequence[str], step: int) -> "DomainGraph | None":
        """Its domains after `step` steps (`build_graph`), None while none are known.

        Written at every validation; may wait for the device.
        """
        return None

    def locate(self, sketch_BK: "Tensor", step: int) -> "tuple[Tensor, Tensor] | None":
        """Domains of other samples, without changing the state: label_B, and closeness_BM to each.

        Greater is nearer, -inf for domains without samples; None while no domains are known.
        If domains last, sketches must be under the run's projection.
        """
        return None

    def explain(self, row: Mapping[str, float], step: int, config: RunConfig) -> list[str]:
        """Sentences that explain the weights of a step (from 1) with the metrics in `row`.

        The mixer is newly built, not in the state of that step.
        """
        return [f"{config.mixer.name} has domains of its own and does not explain them"]

    def option(self, name: str) -> Any:
        """The value of one of its options; None if it has no such option."""
        return getattr(getattr(self, "options", None), name, None)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its options as a run stores them, including defaults that may change later."""
        return dict(options)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        """One line for users."""
        return with_options(name, options)

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run: tensors and JSON values by name."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; its tensors are on the CPU."""

    def report(self) -> Report:
        """Metrics of the last step, named `area/quantity_unit`; vectors have an entry per domain.

        `samples/domain` has one per sample.
        """
        return self._report


class LateReport(Mapping[str, "float | Tensor"]):
    """Metrics that are computed when they are read, on the CPU, from tensors kept on the device.

    Metrics are written only every few steps; reading one waits for the device.
    """

    def __init__(
        self, held: "dict[str, Tensor]", compute: "Callable[[dict[str, Tensor]], Metrics]"
    ) -> None:
        self.held = held  # on the device; empty once the metrics are computed
        self.compute, self.metrics = compute, Metrics()

    def _read(self) -> Metrics:
        read_together([self])
        return self.metrics

    def __getitem__(self, name: str) -> "float | Tensor":
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def read_together(reports: Iterable[Report]) -> None:
    """Copy the tensors of several reports to the CPU, those of one kind and shape in one transfer.

    A tensor in several reports is copied once. This waits for the device.
    """
    import torch

    late = [report for report in reports if isinstance(report, LateReport) and report.held]
    kinds: dict[Any, dict[int, Tensor]] = {}
    for tensor in (tensor for report in late for tensor in report.held.values()):
        kind = (tensor.dtype, tensor.shape, tensor.device)
        kinds.setdefault(kind, {})[id(tensor)] = tensor
    host: dict[int, Tensor] = {}
    for held in kinds.values():
        host |= zip(held, torch.stack(list(held.values())).cpu(), strict=True)
    for report in late:
        report.metrics = report.compute({n: host[id(t)] for n, t in report.held.items()})
        report.held = {}


def require_sources(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that names an unknown source."""
    for name in given:
        require_known(name, known, f'mixer.{option} names "{name}", which is not a source')


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name and its options in words."""
    text = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} with {text}" if text else name


class Planner(Mixer):
    """A mixer whose plan needs proxies; `findings` has diagnostics of the plan."""

    needs_proxies: ClassVar[bool] = True
    findings: Mapping[str, Any] = MappingProxyType({})  # JSON values
    table: MixtureTable | None = None  # of the proxies, if the plan was fitted to one
