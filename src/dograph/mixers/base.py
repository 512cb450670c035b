"""Mixer: the one type behind every method. The base class is `natural`.

A method answers at most three questions: what to draw from (`plan`, before training), how much
each sample counts (`weigh`, each step), and whether to draw differently (`remix`, now and then).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture, Signals

if TYPE_CHECKING:  # torch takes seconds to import; to refuse a misspelt name does not need it
    from torch import Tensor

# Metrics of a step by name; tensors stay on the device until they are written. What costs much to
# say may be said then: any mapping will do.
Report = Mapping[str, "float | Tensor"]

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
    """Natural mixing: draw by tokens, count every sample alike."""

    needs: ClassVar[frozenset[str]] = frozenset()

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

    def refuses_edits(self) -> str | None:
        """Why nobody else may change what is drawn on the way (after "NAME ..."), or None."""
        own = type(self).remix is not Mixer.remix
        return "decides itself what is drawn (it has a `remix`)" if own else None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors and JSON values by name."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; tensors come back on the CPU."""

    def report(self) -> Report:
        """Metrics of the last step, named `area/quantity_unit`.

        A vector has one entry a domain; `samples/domain` has one a sample, its domain.
        """
        return {}


class Planner(Mixer):
    """A mixer whose plan needs proxies; what the proxies showed is told in `findings`."""

    needs_losses: ClassVar[bool] = False  # whether it learns from the proxies' validation losses

    def __init__(self) -> None:
        self.findings: dict[str, Any] = {}  # JSON values: diagnostics of the plan
        self.table: MixtureTable | None = None  # of the proxies, where the plan was fitted on one
