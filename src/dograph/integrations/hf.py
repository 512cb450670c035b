"""A mixer inside the Trainer of transformers.

    trainer = Trainer(model, TrainingArguments("out", max_steps=20_000), train_dataset=data)
    attach(trainer, DoGraph())
    trainer.train()

Taps must be open from a forward to the end of its backward, which no callback spans. So `attach`
wraps `training_step`, a method made to be overridden, and sets `compute_loss_func` inside it alone:
the Trainer runs model and backward itself, and evaluation, which never comes by, is as it was.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.errors import ConfigError
from dograph.integrations.hf_checks import check_mixer, check_mode, check_sources, check_trainer
from dograph.integrations.hf_weighing import MODES, Mode, Weighing
from dograph.integrations.mixer_state import store_mixer
from dograph.mixers.base import Mixer
from dograph.mixers.dograph import DoGraph
from dograph.modes import DEFAULT_DIM
from dograph.sketch.projection import Projection

if TYPE_CHECKING:  # it needs accelerate, which nothing else here does
    from transformers import Trainer


def attach(
    trainer: "Trainer",
    mixer: Mixer,
    *,
    mode: Mode = "twopass",
    dim: int = DEFAULT_DIM,
    seed: int = 0,
    sources: str | None = None,
    exclude: tuple[str, ...] = (),
) -> None:
    """Let `mixer` weigh the samples that a Trainer trains on.

    The gradient of a step is that of sum_i c_i loss_i over its world batch, loss_i the mean NLL of
    sample i over its own labels that are not -100. Without gradient accumulation c = mixer.weigh;
    with it, a micro-batch is weighed before the next is seen: c_i = w_j / (N p_j), with N samples
    in the world batch and p_j the share of domain j so far (`DoGraph.weigh_lagged`).

    Modes: `twopass` sketches every layer, except parameters that `exclude` names, and goes
    backward twice; `head` sketches the output layer alone and goes backward once. `sources` names
    the input of training batches that holds each sample's source, for metrics. The mixer's state is
    kept in every checkpoint folder and comes back with `train(resume_from_checkpoint=...)`.
    """
    if "training_step" in vars(trainer):
        raise ConfigError("the Trainer has a mixer attached already; make a new Trainer")
    check_trainer(trainer)
    check_mixer(mixer, trainer.args.gradient_accumulation_steps)
    check_sources(mixer, sources, trainer.args)
    check_mode(mode, MODES, trainer.model, exclude)
    lasting = not isinstance(mixer, DoGraph) or mixer.scope.keeps_identity
    projection = Projection(dim=dim, seed=seed, refresh="never" if lasting else "step")
    weighing = Weighing(trainer, mixer, mode, projection, sources, exclude)
    trainer.training_step, trainer.train = weighing.training_step, weighing.train
    trainer.get_batch_samples = weighing.get_batch_samples
    trainer.loss_is_scaled_for_ga = True  # older versions know it by compute_loss_func being set
    trainer.add_callback(_events(weighing))


def _events(weighing: Weighing) -> Any:
    """What the Trainer calls between its steps."""
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

    class Events(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            weighing.begin(args, state)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if control.should_log and weighing.unweighted is not None:
                weighing.trainer.log(weighing.report())
                control.should_log = True  # log() put it out; the Trainer's own is yet to come

        on_epoch_end = on_step_end

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
                store_mixer(weighing.mixer, folder, state.global_step)

    return Events()
