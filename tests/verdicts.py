"""Whether a Sketcher gives the gradient of a model of any kind, refuses it, or is wrong.

The oracle is one ordinary backward a sample on a twin of the model, in float64, without anything
of dograph.sketch.

Shapes: B samples, T tokens, V vocabulary, K sketch.
"""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher

DIM = 80
VOCABULARY = 50
FILLING = ("full", "exact", "topdown", "head")  # the modes that fill `.grad` themselves
MODES = (*FILLING, "twopass")
# For what is not silent in itself: `exact` has the taps of `full`, and runs in the slow suite.
MOST_MODES = (
    *(mode for mode in MODES if mode != "exact"),
    pytest.param("exact", marks=pytest.mark.slow),
)
EXACT, REFUSED, WRONG, CRASHED = "exact", "refused", "WRONG", "crashed"
LossOf = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Oracle:
    """Losses, the weighted gradient and every sample's own, by the names of parameters."""

    loss_B: Tensor
    weighted: dict[str, Tensor]
    per_sample: dict[str, Tensor]


@dataclass(frozen=True)
class Verdict:
    """What came of one model in one mode; figures are the largest over parameters and steps."""

    kind: str
    message: str = ""
    error: float = 0.0
    worst: str = ""
    sketch_error: float = 0.0
    warned: list[str] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind in (REFUSED, CRASHED):
            return f"{self.kind}: {self.message}"
        return f"{self.kind}: {self.worst} off by {self.error:.2g}, sketch {self.sketch_error:.2g}"


class FixedWeights:
    """A mixer that gives these weights and keeps what it was shown."""

    def __init__(self, weight_B: Tensor) -> None:
        self.weight_B = weight_B
        self.signals: Any = None

    def weigh(self, signals: Any) -> Tensor:
        self.signals = signals
        return self.weight_B


def unequal(num_samples: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Weights of which no two are equal, which sum to 1; the second is negative."""
    weight_B = torch.linspace(0.4, 1.7, num_samples, dtype=torch.float64).cos().abs() + 0.1
    weight_B[1:2] *= -1
    return (weight_B / weight_B.sum()).to(dtype)


def some_tokens(num_samples: int = 5, num_tokens: int = 8, vocabulary: int = VOCABULARY) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * num_samples + num_tokens)
    return torch.randint(vocabulary, (num_samples, num_tokens), generator=draw)


def randomised(model: nn.Module, seed: int = 0, std: float = 0.15) -> nn.Module:
    """Every parameter drawn anew: no bias is 0, no scale 1, and two models are twins."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() < 2 and "bias" not in name
        parameter.data.normal_(float(is_scale), std, generator=draw)
    return model


def nll(model: Any, token_BT: Tensor) -> Tensor:
    """Mean NLL of every sample over its predicted tokens; the model gives logits."""
    output = model(token_BT)
    logits_BTV = output if isinstance(output, Tensor) else output.logits
    loss_N = F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), token_BT[:, 1:].flatten(), reduction="none"
    )
    return loss_N.view(len(token_BT), -1).mean(dim=1)


@contextmanager
def in_double() -> Iterator[None]:
    """Hugging Face's norms and routers round float64 to float32; inside this nothing does.

    Two ways to the same gradient could otherwise agree to seven digits only. Methods are replaced,
    because a TorchFunctionMode does not reach the backward of an autograd.Function.
    """

    def widely(function: Any) -> Any:
        @functools.wraps(function)
        def call(value: Tensor, *args: Any, **kwargs: Any) -> Any:
            # Whole numbers too: some versions multiply float(positions) by float(frequencies).
            if value.dtype == torch.float64 or not value.is_floating_point():
                if function.__name__ == "float":
                    return value.double()
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                if kwargs.get("dtype") is torch.float32:
                    kwargs["dtype"] = torch.float64
            return function(value, *args, **kwargs)

        return call

    places = [(Tensor, "to"), (Tensor, "float"), (Tensor, "type"), (F, "softmax")]
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, widely(function))
        yield
    finally:
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def oracle(model: nn.Module, token_BT: Tensor, loss_of: LossOf, weight_B: Tensor) -> Oracle:
    """One ordinary backward for each sample's loss; parameters that none reaches are left out."""
    given = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss_B = loss_of(model, token_BT)
    rows: list[tuple[Tensor | None, ...]] = [
        torch.autograd.grad(loss, list(given.values()), retain_graph=True, allow_unused=True)
        for loss in loss_B
    ]
    rows = [tuple(None if g is None else dense(g) for g in row) for row in rows]
    per_sample = {}
    for name, column in zip(given, zip(*rows, strict=True), strict=True):
        if any(part is not None for part in column):
            zeros = torch.zeros_like(given[name])
            per_sample[name] = torch.stack([zeros if part is None else part for part in column])
    weighted = {
        name: torch.einsum("b,b...->...", weight_B.to(gradient_B.dtype), gradient_B)
        for name, gradient_B in per_sample.items()
    }
    return Oracle(loss_B.detach(), weighted, per_sample)


def largest_error(
    got: dict[str, Tensor], expected: dict[str, Tensor], floor: float = 1e-4
) -> tuple[float, str]:
    """Deviation over the largest entry of the parameter, of the worst parameter, and its name.

    Gradients that are 0 but for rounding (a key's bias) are held to `floor` times the others.
    """
    top = max((float(value.abs().max()) for value in expected.values()), default=1.0)
    worst, culprit = 0.0, ""
    for name in sorted({*got, *expected}):
        want, has = expected.get(name), got.get(name)
        want = torch.zeros_like(has) if want is None else want  # type: ignore[arg-type]
        has = torch.zeros_like(want) if has is None else has.to(want.dtype)
        scale = max(float(want.abs().max()), floor * top)
        error = float((has - want).abs().max()) / scale
        if not error <= worst:  # not a number counts as well
            worst, culprit = error, name
    return worst, culprit


def dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient.clone()


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: dense(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def sketch_error(
    sketcher: Any, sketch_BK: Tensor, per_sample: dict[str, Tensor], step: int
) -> float:
    """The sketch against the projection of these per-sample gradients."""
    covered = {name for rule in sketcher.rules for name in rule.names.values()}
    held = {name: gradient for name, gradient in per_sample.items() if name in covered}
    expected_BK = sum(sketcher._builder.groups_of_gradients(held, step).values())
    assert isinstance(expected_BK, Tensor)
    assert sketch_BK.shape == expected_BK.shape
    return float((sketch_BK - expected_BK).abs().max() / expected_BK.abs().max())


@dataclass
class Trial:
    """A model under a Sketcher, beside its twin under the oracle."""

    model: nn.Module
    twin: nn.Module
    batches: Sequence[Tensor]  # one after the other, step by step
    loss_of: LossOf
    sketched: nn.Module | None = None  # a twin whose uses outside of layers are detached
    holds_sketch: bool = True
    floor: float = 1e-4  # for gradients of 0, a part of the largest
    error: float = 0.0
    worst: str = ""
    sketch_error: float = 0.0

    def step(self, sketcher: Any, step: int) -> None:
        """One recorded backward; figures keep the worst of all steps."""
        self.model.zero_grad()
        token_BT = self.batches[step % len(self.batches)]
        dtype = next(self.model.parameters()).dtype
        mixer = FixedWeights(unequal(len(token_BT), dtype))
        with sketcher.record(token_BT, step):
            loss_B = self.loss_of(self.model, token_BT)
            sketcher.backward(loss_B, mixer)
        weight_B = mixer.weight_B.double()
        expected = oracle(self.twin, token_BT, self.loss_of, weight_B)
        self._note(*largest_error(gradients_of(self.model), expected.weighted, self.floor))
        self._note(*largest_error({"the loss": loss_B.detach()}, {"the loss": expected.loss_B}))
        if self.holds_sketch and sketcher.mode in ("full", "exact", "twopass"):
            self._note_sketch(sketcher, mixer.signals.sketch_BK, expected.per_sample, step)

    def _note(self, error: float, worst: str) -> None:
        if not error <= self.error:  # not a number counts as well
            self.error, self.worst = error, worst

    def _note_sketch(
        self, sketcher: Any, sketch_BK: Tensor, per_sample: dict[str, Tensor], step: int
    ) -> None:
        covered = {name for rule in sketcher.rules for name in rule.names.values()}
        if self.sketched is not None and sketcher.mode != "twopass":
            token_BT = self.batches[step % len(self.batches)]
            weight_B = unequal(len(token_BT))
            per_sample = oracle(self.sketched, token_BT, self.loss_of, weight_B).per_sample
        elif sketcher.mode != "twopass" and covered & set(getattr(sketcher, "outside", {}) or {}):
            return  # a part of these parameters' gradient is in the sketch, and a part is not
        error = sketch_error(sketcher, sketch_BK, per_sample, step)
        if not error <= self.sketch_error:
            self.sketch_error = error


def verdict(
    make_model: Callable[[], nn.Module],
    mode: Any,
    *,
    loss_of: LossOf = nll,
    token_BT: Tensor | Sequence[Tensor] | None = None,
    make_sketched: Callable[[], nn.Module] | None = None,
    before_step: Callable[[nn.Module, int], None] | None = None,
    options_of: Callable[[Any], dict[str, Any]] | None = None,
    steps: int | None = None,
    tolerance: float = 1e-10,
    holds_sketch: bool = True,
    **options: Any,
) -> Verdict:
    """Some recorded steps beside the oracle; `make_model` gives a twin when it is called again.

    `make_sketched` gives a twin whose uses of parameters outside their layers are detached: its
    per-sample gradients are those that the sketch of mode full holds; that of twopass must warn.
    Several batches are steps. `before_step` may change the models, and `options_of` names their
    modules to the Sketcher.
    """
    token_BT = some_tokens() if token_BT is None else token_BT
    batches = [token_BT] if isinstance(token_BT, Tensor) else token_BT
    sketched = make_sketched().double() if make_sketched else None
    twins = make_model(), make_model().double()
    trial = Trial(*twins, batches, loss_of, sketched, holds_sketch)
    trial.floor = 1e-4 if tolerance < 1e-8 else 1e-2
    if mode == "topdown":
        options = {"top_blocks": 1, **options}
    if options_of is not None:
        options |= options_of(trial.model)
    with Said() as said:
        try:
            sketcher: Any = Sketcher(trial.model, mode=mode, dim=DIM, **options)
            for step in range(steps or len(batches)):
                for model in filter(None, (trial.model, trial.twin, trial.sketched)):
                    if before_step is not None:
                        before_step(model, step)
                trial.step(sketcher, step)
        except ConfigError as refused:
            return Verdict(REFUSED, str(refused), warned=said)
        except Exception as crash:
            return Verdict(CRASHED, f"{type(crash).__name__}: {crash}", warned=said)
    warned = mode == "twopass" and bool(said)  # of a sketch that misses a use
    right = trial.error <= tolerance and (warned or trial.sketch_error <= 10 * tolerance)
    outside = dict(getattr(sketcher, "outside", {}) or {})
    return Verdict(
        EXACT if right else WRONG,
        error=trial.error,
        worst=trial.worst,
        sketch_error=trial.sketch_error,
        warned=said,
        outside=outside,
    )


class Said(logging.Handler):
    """What dograph warns of, by a warning or in its log; not the deprecations of libraries."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> list[str]:
        self.catcher = warnings.catch_warnings()
        self.catcher.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self.note
        self.logger = logging.getLogger("dograph")
        self.propagated, self.logger.propagate = self.logger.propagate, False
        self.logger.addHandler(self)
        return self.texts

    def note(self, message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        if category is UserWarning:
            self.texts.append(str(message))

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.propagate = self.propagated
        self.catcher.__exit__(None, None, None)
