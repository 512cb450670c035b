"""A mixer inside the Trainer of Lightning.

    trainer = Trainer(max_steps=20_000)
    attach(trainer, module.model, DoGraph())
    trainer.fit(module, loader)

`training_step` returns one loss per sample instead of their mean. What follows is the loop that
README shows: a record around `training_step` and the backward, then sketch, weigh, backward.
Lightning has no hook around both, so the callback replaces the module's `training_step` and
`backward` from the start of training to its end.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dograph.choices import Mode
from dograph.errors import ConfigError, RunError
from dograph.integrations.requirements import entry, require_mixer, summary
from dograph.mixers.base import Mixer
from dograph.sketch.sketcher import Sketcher
from dograph.types import Signals

STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")


def attach(
    trainer: Any,
    model: nn.Module,
    mixer: Mixer,
    *,
    mode: Mode = "full",
    tokens: str | int = "input_ids",
    sources: str | int | None = None,
    **options: Any,
) -> None:
    """Let `mixer` weight the samples that a Lightning Trainer trains on.

    `model` is the module that `training_step` calls; `training_step` returns the loss of each
    sample, or a dict with them as `loss`. `tokens` and `sources` are the entries of a batch that
    hold the model's input and each sample's source: a name, or a place in a tuple (`tokens=0`).
    `options` are those of `Sketcher`.

    The mixer's state is saved in every checkpoint and restored by `fit(ckpt_path=...)`.
    """
    kind: Any = type("MixerCallback", (LightningMixer, _callback_class(trainer)), {})
    if any(other.state_key == kind.state_key for other in trainer.callbacks):
        raise ConfigError("the Trainer has a mixer attached already; create a new Trainer")
    require_mixer(mixer, sources)
    _require_trainer(trainer)
    options |= {"mode": mode, "refresh": mixer.refresh(None)}
    trainer.callbacks.append(kind(mixer, model, tokens, sources, options))


@dataclass(eq=False)
class LightningMixer:
    """A callback, with the methods that replace the LightningModule's own."""

    state_key: ClassVar[str] = "dograph_mixer"  # among the states of a checkpoint's callbacks

    mixer: Mixer
    model: nn.Module
    tokens: str | int
    sources: str | int | None
    options: dict[str, Any]  # of the sketcher
    started: bool = False  # or restored: the mixer keeps the warm-up of its first start
    weighed: int | None = None  # the last step that has weights
    record: ExitStack = field(default_factory=ExitStack)  # open from the forward to the backward

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """The model is on its device now, and a checkpoint is loaded."""
        _require_module(module, self.model, trainer)
        self.sketcher = Sketcher(self.model, **self.options)
        if not self.started and trainer.global_step:
            raise RunError(
                f"training goes on at step {trainer.global_step}, but the checkpoint has no state "
                "of a mixer. Resume from one that was saved with the mixer attached, or start again"
            )
        if not self.started:
            self.mixer.warm_up(int(trainer.estimated_stepping_batches))
        self.started = True
        self.stock_step, module.backward = module.training_step, self.backward
        # Lightning looks at the arguments of the step that is wrapped.
        module.training_step = wraps(self.stock_step)(partial(self.training_step, trainer))

    def training_step(self, trainer: Any, batch: Any, *args: Any) -> Any:
        step, wrapper = trainer.global_step, trainer.strategy.model
        if step == self.weighed:
            raise ConfigError(
                f"training_step runs a second time before update {step + 1} (accumulation): each "
                "batch would be weighted alone. Make one update per batch, or use your own loop"
            )
        with ExitStack() as stack:
            stack.enter_context(self.sketcher.record(entry(batch, self.tokens), step))
            if self.sketcher.reduces and isinstance(wrapper, DistributedDataParallel):
                stack.enter_context(wrapper.no_sync())  # the sketcher averages over ranks
            output = self.stock_step(batch, *args)
            if output is None:  # the batch is skipped
                return None
            loss_b = output["loss"] if isinstance(output, Mapping) else output
            source_b = None if self.sources is None else entry(batch, self.sources)
            result = self.sketcher.sketch(loss_b)
            (weight_b,) = self.sketcher.weigh([result], self, source_b)
            self.fill_grad = partial(result.backward, weight_b)
            self.record, self.weighed = stack.pop_all(), step
        loss = (weight_b.to(loss_b.dtype) * loss_b).sum()
        return {**output, "loss": loss} if isinstance(output, Mapping) else loss

    def weigh(self, signals: Signals) -> Tensor:
        """The mixer's weights, kept for the log."""
        assert signals.loss_B is not None
        self.unweighted, self.weight_B = signals.loss_B.mean(), self.mixer.weigh(signals)
        return self.weight_B

    def backward(self, loss: Tensor, *_: Any) -> None:
        """Leaving the first record compares the gradient with that of the model's own backward."""
        with self.record:
            self.fill_grad()
            if self.sketcher.reduces:  # otherwise DDP did
                self.sketcher.average_gradients()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0 and trainer.loggers:
            values = summary(self.mixer, self.unweighted, self.weight_B)
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        self.record.__exit__(type(error), error, error.__traceback__)
        self.on_fit_end(trainer, module)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Give the module its own methods back."""
        for name in ("training_step", "backward"):
            vars(module).pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1, "mixer": self.mixer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mixer.load_state_dict(dict(state["mixer"]))
        self.started = True


def _callback_class(trainer: Any) -> Any:
    """Callback of the Trainer's own package: `lightning` and `pytorch_lightning` each have one."""
    for kind in type(trainer).__mro__:
        package, found, _ = kind.__module__.partition(".trainer.trainer")
        if found and kind.__name__ == "Trainer":
            return import_module(f"{package}.callbacks").Callback
    raise ConfigError(f"{type(trainer).__name__} is not a Trainer of lightning; make one of those")


def _require_trainer(trainer: Any) -> None:
    """Refuse a Trainer that the weights cannot reach, before anything runs."""
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        raise ConfigError(
            f'strategy {strategy} shards or moves parameters; use one device, or strategy="ddp"'
        )
    if trainer.precision not in PRECISIONS:
        raise ConfigError(
            f"precision={trainer.precision}: sketches underflow in float16, and a loss scaler "
            f"does not reach the gradients of the samples; use one of {', '.join(PRECISIONS)}"
        )
    if (number := trainer.accumulate_grad_batches) != 1:
        raise ConfigError(
            f"accumulate_grad_batches={number}: each micro-batch would be weighted alone; set it "
            "to 1, or collect micro-batches in a loop of your own (docs/own-loop.md)"
        )


def _require_module(module: Any, model: nn.Module, trainer: Any) -> None:
    """Refuse a LightningModule whose updates are not those of one weighted loss."""
    name = type(module).__name__
    owner = next(kind.__name__ for kind in type(module).__mro__ if "backward" in vars(kind))
    if not module.automatic_optimization or owner != "LightningModule":
        raise ConfigError(
            f"{name} has a backward of its own, or automatic_optimization=False; use Sketcher in "
            "it as in a loop of your own (docs/own-loop.md), without attach"
        )
    if module._compiler_ctx is not None:
        raise ConfigError(f"{name} is compiled as a whole; compile the model inside it instead")
    if getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
        raise ConfigError("ddp_comm_hook: the sketcher averages gradients without it; leave it out")
    if trainer.estimated_stepping_batches == float("inf"):
        raise ConfigError("the run has no end, of which the warm-up is a part; set max_steps")
    optimizers = [type(optimizer).__name__ for optimizer in trainer.optimizers]
    if len(optimizers) != 1 or "LBFGS" in optimizers:
        raise ConfigError(f"optimizers {optimizers}: use one that runs training_step once a step")
    own = {id(parameter) for parameter in model.parameters()}
    others = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in own]
    if others:
        raise ConfigError(
            f"{others[:5]} of {name} are trained, but not part of the model that was given to "
            "attach: give the module that holds all of them and is called in training_step"
        )
