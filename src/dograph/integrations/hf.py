"""A mixer inside the Trainer of transformers.

    trainer = Trainer(model, TrainingArguments("out", max_steps=20_000), train_dataset=data)
    attach(trainer, DoGraph())
    trainer.train()

Taps must be open from a forward to the end of its backward, and no callback spans both. So `attach`
wraps `training_step`, a method meant to be overridden, and sets `compute_loss_func` only inside it:
the Trainer runs the model and its backward itself, and evaluation is unchanged.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.config import DEFAULT_DIM
from dograph.errors import ConfigError, RunError, did_you_mean
from dograph.files import sha256_of, write_bytes, write_json
from dograph.integrations.requirements import entry, require_mixer, summary
from dograph.mixers.base import Mixer
from dograph.models.loss import is_as_returned
from dograph.records import unpacked
from dograph.sketch.gradients import (
    MicroBatchResult,
    WorldRows,
    gather_signals,
    world_size,
)
from dograph.sketch.head import IGNORED, head_projection, sketched_cross_entropy
from dograph.sketch.projection import Projection
from dograph.sketch.rules import replaced_forward
from dograph.sketch.sketcher import Sketcher
from dograph.train.checkpoint import mixer_state, restore_mixer
from dograph.train.noise import NoiseScale
from dograph.train.watch import SampleWatch
from dograph.types import Signals

if TYPE_CHECKING:
    from transformers import Trainer

TENSORS, VALUES = "dograph_mixer.safetensors", "dograph_mixer.json"
Mode = Literal["twopass", "head"]
PROCESSES = ("NO", "MULTI_CPU", "MULTI_GPU")  # accelerate's names for one process, and for DDP

logger = logging.getLogger("dograph.integrations.hf")


def attach(
    trainer: "Trainer",
    mixer: Mixer,
    *,
    mode: Mode = "twopass",
    dim: int = DEFAULT_DIM,
    seed: int = 0,
    sources: str | None = None,
    source_names: Sequence[str] = (),
    exclude: tuple[str, ...] = (),
    watch: SampleWatch | None = None,
    ids: str | None = None,
) -> None:
    """Let `mixer` weight the samples that a Trainer trains on.

    The gradient of a step is that of sum_i c_i loss_i over its world batch, loss_i the mean NLL of
    sample i over its own labels that are not -100. Without gradient accumulation c = mixer.weigh;
    with it, each micro-batch gets its weights before the next one is seen: c_i = w_j / (N p_j),
    with N samples in the world batch and p_j the share of domain j so far (`DoGraph.weigh_lagged`).

    Modes: `twopass` sketches every layer, except parameters named in `exclude`, with two backward
    passes; `head` sketches only the output layer, with one. `sources` is the name of the training
    input that holds each sample's source, an index into `source_names`, for metrics. The log gets
    the noise scale of what is sketched. `watch` looks at every step; its `ring` has the last ones,
    with the samples' `ids`, the training input of that name. The state of all of them is saved in
    every checkpoint folder and restored by `train(resume_from_checkpoint=...)`.
    """
    from transformers import TrainerCallback

    if "training_step" in vars(trainer):
        raise ConfigError("the Trainer has a mixer attached already; create a new Trainer")
    _require_trainer(trainer, mixer, sources)
    require_mixer(mixer, sources)
    _require_mode(mode, trainer.model, exclude)
    projection = Projection(dim=dim, seed=seed, refresh=mixer.refresh(None))
    if watch is not None and watch.skips:
        raise ConfigError("the Trainer's optimizer cannot skip an update; give SampleWatch()")
    used = mode if "sketch" in mixer.needs or watch else None
    noise = NoiseScale(source_names)
    attached = AttachedMixer(trainer, mixer, used, projection, sources, exclude, noise, watch, ids)
    trainer.training_step, trainer.train = attached.training_step, attached.train
    trainer.get_batch_samples = attached.get_batch_samples
    trainer.loss_is_scaled_for_ga = True  # older versions infer it from compute_loss_func
    callback = TrainerCallback()
    for event in ("on_train_begin", "on_step_end", "on_epoch_end", "on_save"):
        setattr(callback, event, getattr(attached, event))
    trainer.add_callback(callback)


@dataclass
class AttachedMixer:
    """The methods that replace the Trainer's own, and its callbacks."""

    trainer: "Trainer"
    mixer: Mixer
    mode: Mode | None  # of the sketch, if the mixer needs one
    projection: Projection
    sources: str | None
    exclude: tuple[str, ...]
    noise: NoiseScale
    watch: SampleWatch | None
    ids: str | None
    resumed: bool = False  # a restored mixer keeps the warm-up of its first start
    unweighted: Tensor | None = None
    head_output: Tensor | None = None  # what the replaced output layer returned

    def __post_init__(self) -> None:
        self.stock_train = self.trainer.train
        self.stock_step = self.trainer.training_step
        self.stock_batches = self.trainer.get_batch_samples
        self.meters = nn.ModuleDict({"noise": self.noise} if self.mode else {})
        self.meters.update({} if self.watch is None else {"watch": self.watch})

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        from transformers.trainer_utils import get_last_checkpoint

        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.trainer.args.output_dir)
        self.resumed = bool(folder)
        if folder:
            try:
                state = json.loads((Path(folder) / VALUES).read_text(encoding="utf-8"))
                tensors = Path(folder) / TENSORS
                if state["sha256"] != sha256_of(tensors):
                    raise ValueError(f"{TENSORS} is damaged: it does not match {VALUES}")
                restore_mixer(self.mixer, self.meters, tensors, state["mixer"])
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                raise RunError(
                    f"{folder} has no complete state of a mixer ({error}). Resume from a "
                    "checkpoint that was saved with the mixer attached, such as the one before it, "
                    "or start again"
                ) from error
        return self.stock_train(resume_from_checkpoint, *args, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The model is on its device now, and the number of steps is known."""
        if self.mode == "head":
            self.head, self.epoch = self.trainer.model.get_output_embeddings(), -1
            self.stock_forward = self.trainer.model.forward
        if self.mode == "twopass":
            own = {name: getattr(self.projection, name) for name in ("dim", "seed", "refresh")}
            own |= {"mode": "twopass", "exclude": self.exclude, "projection": self.projection.kind}
            self.sketcher = Sketcher(self.trainer.model, **own)
        if not self.resumed:
            self.mixer.warm_up(state.max_steps)
        if args.gradient_accumulation_steps > 1 and state.is_world_process_zero:
            logger.warning(
                "gradient_accumulation_steps=%d: the weights of each micro-batch come from the "
                "domains known before its step (lagged weights)",
                args.gradient_accumulation_steps,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_log and self.unweighted is not None:
            values = summary(self.mixer, self.unweighted, self.weight_B)
            self.trainer.log(values | unpacked(self.noise.report()))
            control.should_log = True  # log() cleared it, but the Trainer has yet to log its own

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the mixer's state to the checkpoint; the JSON file is written last."""
        from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

        if not state.is_world_process_zero:
            return
        step, (tensors, values) = state.global_step, mixer_state(self.mixer, self.meters)
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        if not folder.is_dir():
            raise RunError(
                f"the checkpoint of step {step} is not in {folder}, so the mixer's state cannot be "
                "saved; a hyper-parameter search saves elsewhere: run it without a mixer"
            )
        write_bytes(folder / TENSORS, save(tensors))
        digest = sha256_of(folder / TENSORS)
        write_json(folder / VALUES, {"version": 1, "step": step, "sha256": digest, "mixer": values})

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """All micro-batches of a step, which give the size of the world batch."""
        batches, num_items = self.stock_batches(*args, **kwargs)
        device = self.trainer.args.device
        # Sizes are exchanged once for everything that is gathered, before the device has work.
        self.rows = [WorldRows(len(entry(batch, "input_ids")), device) for batch in batches]
        self.num_samples = world_size() * sum(rows.num_local for rows in self.rows)
        self.results: list[MicroBatchResult] = []
        self.weights: list[Tensor] = []
        self.sample_ids: list[Tensor] = []
        return batches, num_items

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *_: Any) -> Tensor:
        given, device = dict(inputs), self.trainer.args.device
        label_bT = entry(given, "labels").to(device)
        self.target_bT = F.pad(label_bT[:, 1:], (0, 1), value=IGNORED)
        self.source_b = None
        if self.sources is not None:
            self.source_b = entry(given, self.sources).to(device)
            del given[self.sources]
        if self.ids is not None:
            self.sample_ids.append(entry(given, self.ids).to(device))
            del given[self.ids]
        token_bT, step = entry(given, "input_ids").to(device), self.trainer.state.global_step
        with ExitStack() as stack:
            if self.mode == "twopass":
                with self.trainer.accelerator.autocast():  # slots take the layers' precision
                    stack.enter_context(self.sketcher.record(token_bT, step))
            if self.mode == "head":
                if self.epoch != (epoch := self.projection.epoch(step)):
                    self.sides = head_projection(self.head.weight, self.projection, step=epoch)
                    self.epoch = epoch
                stack.enter_context(replaced_forward(self.head, self.sketching_head))
                stack.enter_context(replaced_forward(self.trainer.model, self.checked_forward))
            self.trainer.compute_loss_func = self.loss
            stack.callback(setattr, self.trainer, "compute_loss_func", None)
            # num_items_in_batch=None: with a number, the Trainer multiplies by the processes.
            loss: Tensor = self.stock_step(model, given, None)
            return loss

    def sketching_head(self, hidden_bTD: Tensor) -> Tensor:
        """Replaces the output layer: hidden states in, the loss and sketch of each sample out.

        Inside the model's forward, DDP sees the layer's weight, and the loss can be compiled.
        """
        kind = hidden_bTD.device.type
        if torch.is_autocast_enabled(kind):
            hidden_bTD = hidden_bTD.to(torch.get_autocast_dtype(kind))
        given = (hidden_bTD, self.head.weight, self.target_bT, self.sides)
        loss_b, sketch_bK = sketched_cross_entropy(*given)
        self.head_output = output_bX = torch.cat([loss_b[:, None], sketch_bK], dim=1)
        return output_bX

    def checked_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, if it returns what the output layer returned and nothing else.

        Checked in every step, inside DDP, which copies outputs. Comparing objects costs nothing.
        """
        self.head_output = None
        outputs = self.stock_forward(*args, **kwargs)
        if not is_as_returned(outputs, self.head_output):
            raise ConfigError(
                f"{type(self.trainer.model).__name__} changes the logits after its output layer (a "
                "soft cap, a factor, a slice), or returns no logits; mode head needs the layer's "
                "own output. Use mode twopass"
            )
        return outputs

    def loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        """sum_i c_i loss_i over this micro-batch, times the processes, over which DDP averages."""
        if self.mode == "head":
            loss_b, sketch_bK = outputs.logits[:, 0], outputs.logits[:, 1:].detach()
            result = MicroBatchResult(loss_b, None, sketch_bK, sketch_bK.norm(dim=1))
        else:
            logit_nV = outputs.logits.float().flatten(0, 1)
            nll_n = F.cross_entropy(logit_nV, self.target_bT.flatten(), reduction="none")
            num_valid_b = (self.target_bT != IGNORED).sum(dim=1).clamp_min(1)
            loss_b = nll_n.view_as(self.target_bT).sum(dim=1) / num_valid_b
            result = self.sketcher.sketch(loss_b) if self.mode else MicroBatchResult(loss_b)
        result.source_B = self.source_b
        self.results.append(result.without_gradient())
        weighted_b: Tensor = self._weigh().to(loss_b.dtype) * loss_b
        return weighted_b.sum()

    def _weigh(self) -> Tensor:
        """Weights of the newest micro-batch: from the whole batch, or lagged if there are more."""
        if len(self.rows) == 1:
            self.weight_B = self.mixer.weigh(self._world_signals())
            return self.rows[0].local(self.weight_B)
        newest, num = self.results[-1], len(self.results[-1].loss_B)
        alone = WorldRows(num, newest.loss_B.device, sizes=[num])
        weight_b = self.mixer.weigh_lagged(self._signals([newest], [alone]), self.num_samples)
        self.weights.append(weight_b)
        if len(self.results) == len(self.rows):
            world = self._world_signals()
            every = zip(self.rows, self.weights, strict=True)
            self.weight_B = torch.cat([rows.gather(weight) for rows, weight in every])
            self.mixer.observe(world, self.weight_B)
        return weight_b * world_size()

    def _world_signals(self) -> Signals:
        """Ordered by micro-batch, then rank, so they do not depend on the number of ranks."""
        signals = self._signals(self.results, self.rows)
        assert signals.loss_B is not None
        self.unweighted = signals.loss_B.mean()
        if self.mode:
            self.noise.observe(signals)
        if self.watch is not None:
            each = zip(self.rows, self.sample_ids, strict=False)  # none if there are no ids
            ids = [rows.gather(id_b) for rows, id_b in each]
            self.watch.observe(signals, ids=torch.cat(ids) if ids else ())
        return signals

    def _signals(self, results: Sequence[MicroBatchResult], rows: Sequence[WorldRows]) -> Signals:
        step = self.trainer.state.global_step
        return gather_signals(results, rows, step=step, projection=self.projection.epoch(step))


def _require_trainer(trainer: "Trainer", mixer: Mixer, sources: str | None) -> None:
    """Refuse a Trainer that the weights cannot reach or the mixer cannot work with."""
    from transformers import PreTrainedModel, Trainer

    args, model, kind = trainer.args, trainer.model, trainer.accelerator.distributed_type
    if type(trainer).compute_loss is not Trainer.compute_loss:
        raise ConfigError(
            f"{type(trainer).__name__} has a compute_loss of its own, which would ignore the "
            "weights; attach to a Trainer that does not override it"
        )
    if trainer.compute_loss_func is not None:
        raise ConfigError("the Trainer has a compute_loss_func already; create it without one")
    if smoothing := args.label_smoothing_factor:
        raise ConfigError(f"label_smoothing_factor={smoothing}: losses are plain NLL; set it to 0")
    if args.fp16:
        raise ConfigError("fp16: sketches underflow without loss scaling; use bf16=True")
    if args.n_gpu > 1:
        raise ConfigError(
            f"{args.n_gpu} GPUs in one process (DataParallel): start one process per GPU with "
            "torchrun, or select one with CUDA_VISIBLE_DEVICES"
        )
    if kind.value not in PROCESSES or any(isinstance(p, DTensor) for p in model.parameters()):
        raise ConfigError(
            f"parameters sharded over processes ({kind.value}): attach supports one process and "
            "DDP; use DDP, or sketched_cross_entropy in a training loop of your own"
        )
    if args.auto_find_batch_size:
        raise ConfigError(
            "auto_find_batch_size would restart training with the mixer's state of the failed "
            "attempt; set it to False and choose per_device_train_batch_size"
        )
    if not isinstance(model, PreTrainedModel) or model.config.is_encoder_decoder:
        raise ConfigError(
            f"{type(model).__name__} is not a causal language model of transformers (to compile "
            "one, set torch_compile=True); use Sketcher in your own loop"
        )
    accumulation = args.gradient_accumulation_steps
    if accumulation > 1 and (why := mixer.refuses_lagged()) is not None:
        raise ConfigError(
            f"gradient_accumulation_steps={accumulation}: {type(mixer).__name__} {why}; or use a "
            "mixer with lagged weights (DoGraph with scope=stream or period), or one micro-batch a "
            "step"
        )
    if sources is not None and args.remove_unused_columns:
        raise ConfigError(
            f"sources={sources!r}, but the Trainer drops inputs that the model does not take; "
            "set remove_unused_columns=False"
        )


def _require_mode(mode: str, model: Any, exclude: tuple[str, ...]) -> None:
    """Refuse an unknown mode, and an output layer that mode head cannot sketch."""
    if mode not in get_args(Mode):
        raise ConfigError(
            f"mode={mode!r} is not known here; {did_you_mean(mode, get_args(Mode))} (full, topdown "
            "and exact fill .grad themselves, but the Trainer runs its own backward)"
        )
    if mode != "head":
        return
    if exclude:
        raise ConfigError(f"exclude={exclude}: mode head sketches the output layer and no other")
    head = model.get_output_embeddings()
    is_plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    if not is_plain or head.bias is not None:
        what = type(head).__name__ if not is_plain else "an nn.Linear with a bias"
        raise ConfigError(
            f"the output layer of {type(model).__name__} is {what}; mode head needs an nn.Linear "
            "without bias, adapters (LoRA) or quantisation. Use mode twopass, or leave the output "
            "layer out of target_modules"
        )
    if not head.weight.requires_grad:
        raise ConfigError(
            f"the output layer of {type(model).__name__} is frozen, so it has no gradient; mode "
            "head sketches only that one. Train it (requires_grad_(True)), or use mode twopass"
        )
