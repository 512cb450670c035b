"""Mixer: the one type behind every method. The base class is `natural`.

A method answers at most three questions: what to draw from (`plan`, before training), how much
each sample counts (`weigh`, each step), and whether to draw differently (`remix`, now and then).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dograph.config import Refresh, RunConfig
from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture, Signals

if TYPE_CHECKING:  # torch takes seconds to import; to refuse a misspelt name does not need it
    from torch import Tensor

    from dograph.domains.graph import DomainGraph

# Metrics of a step by name; tensors stay on the device until they are written. What costs much to
# say may be said then: any mapping will do, and `LateReport` is one that waits.
Report = Mapping[str, "float | Tensor"]
Metrics = dict[str, "float | Tensor"]

# What `weigh` may ask for. The step computes only what the mixer needs.
SIGNALS = frozenset({"loss", "reference_loss", "sketch", "source"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """A small run that a plan asks its lab for."""

    label: str  # what users see of it
    mixer: Mapping[str, Any]  # its mixer's name and options, as in a configuration
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, over the lab's own


@dataclass(frozen=True, slots=True)
class ProxyResult:
    """What a proxy came to."""

    losses: Mapping[str, float]  # last validation loss of each source, nats
    curve: Sequence[tuple[int, Mapping[str, float]]]  # (steps made, losses) at every validation
    state: Mapping[str, Any]  # of its mixer, when it ended; tensors as lists
    model: str  # folder of its model
    parameters: int  # of its model, embeddings apart
    tokens: int  # it was trained on


class Lab(Protocol):
    """What a plan may know and do before training. Injected, so mixers never import training."""

    @property
    def tokens(self) -> Mapping[str, int]:
        """Training tokens of each source."""

    @property
    def strata(self) -> Mapping[str, int]:
        """Training tokens of each stratum: what mixtures may also name."""

    @property
    def budget(self) -> int:
        """Tokens that the run will draw."""

    @property
    def steps(self) -> int:
        """Steps that the run will make."""

    @property
    def proxy_steps(self) -> int:
        """Steps that a proxy makes, unless its settings say otherwise."""

    @property
    def parameters(self) -> int:
        """Parameters of the run's model, embeddings apart."""

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        """Make these runs, in parallel where that can be, and return what each came to."""


class Mixer:
    """Natural mixing: draw by tokens, count every sample alike.

    All that training, pages and commands want to know of a mixer is asked here; a subclass
    overrides what differs.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    needs_proxies: ClassVar[bool] = False  # its plan comes from small runs: a `Planner`
    has_domains: ClassVar[bool] = False  # it groups samples; `graph` and `locate` tell of it
    reads_mixtures: ClassVar[bool] = False  # its options may name mixture files (`inlined`)
    reference: str | None = None  # the model that `reference_loss` is of
    _report: Report = MappingProxyType({})

    def plan(self, lab: Lab) -> Mixture:
        """What to draw from at first."""
        return Mixture.normalised({name: float(n) for name, n in lab.tokens.items()})

    def weigh(self, signals: Signals) -> "Tensor":
        """Weight of each sample of the world batch: (B,), >= 0, summing to 1."""
        import torch

        equal = 1 / signals.num_samples
        return torch.full((signals.num_samples,), equal, device=signals.device)

    def remix(self, signals: Signals) -> Mixture | None:
        """What to draw from after `signals.step`, or None to go on as before."""
        return None

    def schedule(self) -> Mapping[int, Mixture]:
        """Mixtures that `remix` is known to ask for, by the step from which they hold."""
        return {}

    def warm_up(self, steps: int) -> None:
        """Hear how long the run is: for a warm-up that is a share of it. Called once, before it."""

    @property
    def changes_sampling(self) -> bool:
        """Whether it may ask for another mixture in the course of a run (`remix`)."""
        return type(self).remix is not Mixer.remix

    @property
    def requires_sources(self) -> bool:
        """Whether it cannot weigh without sources, beyond reporting by them."""
        return "source" in self.needs

    def refuses_edits(self) -> str | None:
        """Why nobody else may change what is drawn on the way (after "NAME ..."), or None."""
        return "decides itself what is drawn (it has a `remix`)" if self.changes_sampling else None

    def refuses_lagged(self) -> str | None:
        """Why it has no weights for a micro-batch alone (after "NAME ..."), or None.

        A mixer that needs nothing weighs all alike; any other one needs a `weigh_lagged`.
        """
        if not self.needs or type(self).weigh_lagged is not Mixer.weigh_lagged:
            return None
        return "would have to weigh micro-batches before it has seen them all"

    def weigh_lagged(self, signals: Signals, num_samples: int) -> "Tensor":
        """Weights of one micro-batch by what was known before the step: (b,), of B = `num_samples`.

        Those of all micro-batches sum to 1 in the mean. With accumulation lagged this takes the
        place of `weigh`, and `observe` follows.
        """
        return self.weigh(replace(signals, num_samples=num_samples))[: signals.num_samples]

    def observe(self, signals: Signals, weight_B: "Tensor") -> None:
        """Take in a world batch whose samples were weighed by `weigh_lagged`."""

    def refresh(self, asked: Refresh | None) -> Refresh:
        """When the projection of the sketches is redrawn: as asked for, or as it needs (None).

        A mixer that compares sketches of different steps refuses what would redraw it too often.
        """
        return "never" if asked is None else asked

    @property
    def domains_last(self) -> bool:
        """Whether a number is the same domain in every step, not a rank within one batch."""
        return True

    def graph(self, sources: Sequence[str], step: int) -> "DomainGraph | None":
        """Its domains after `step` steps, None while none are known; may wait for the device.

        `dograph.domains.graph.build_graph` makes one. A run keeps it at every validation.
        """
        return None

    def locate(self, sketch_BK: "Tensor", step: int) -> "tuple[Tensor, Tensor] | None":
        """Where samples fall that were not in the batch: label_B, and closeness_BM to each domain.

        Greater is nearer, -inf for domains without samples; None while no domains are known.
        Nothing changes. Where domains last, sketches are under the projection of the run's own.
        """
        return None

    def explain(self, row: Mapping[str, float], step: int, config: RunConfig) -> list[str]:
        """Sentences on why samples counted what they did in a step, counted from 1.

        `row` has the step's metrics. Asked of a mixer as it was built, not as it was then.
        """
        return [f"{config.mixer.name} has domains of its own; what they go by is for it to say"]

    def option(self, name: str) -> Any:
        """What one of its options is, given or by default; None where it has no such option."""
        return getattr(getattr(self, "options", None), name, None)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its options as a run keeps them: what a default may change later is named."""
        return dict(options)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        """One line for people: the options given, and what they come to."""
        return with_options(name, options)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors and JSON values by name."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; tensors come back on the CPU."""

    def report(self) -> Report:
        """Metrics of the last step, named `area/quantity_unit`.

        A vector has one entry a domain; `samples/domain` has one a sample, its domain.
        """
        return self._report


class LateReport(Mapping[str, "float | Tensor"]):
    """Metrics that are worked out when they are read: they are written every few steps only.

    A step keeps what they are made of, some small tensors on the device, and no metric decides
    anything. Reading one waits for the device and works all of them out, on the CPU.
    """

    def __init__(
        self, held: "dict[str, Tensor]", work_out: "Callable[[dict[str, Tensor]], Metrics]"
    ) -> None:
        self.held = held  # on the device; empty once the metrics are there
        self.work_out, self.metrics = work_out, Metrics()

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
    """Bring over what several reports are made of, in a few transfers; this waits for the device.

    Tensors of one kind come as one, and those that several reports hold come once.
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
        report.metrics = report.work_out({n: host[id(t)] for n, t in report.held.items()})
        report.held = {}


def require_sources(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that names what no source is called."""
    for name in given:
        if name not in known:
            raise ConfigError(
                f'mixer.{option} names "{name}", which is not a source; {did_you_mean(name, known)}'
            )


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name and the options given to it, for people."""
    told = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} with {told}" if told else name


class Planner(Mixer):
    """A mixer whose plan needs proxies; what the proxies showed is told in `findings`."""

    needs_proxies: ClassVar[bool] = True
    needs_losses: ClassVar[bool] = False  # whether it learns from the proxies' validation losses

    def __init__(self) -> None:
        self.findings: dict[str, Any] = {}  # JSON values: diagnostics of the plan
        self.table: MixtureTable | None = None  # of the proxies, where the plan was fitted on one
