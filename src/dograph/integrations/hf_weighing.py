"""How an attached mixer sees and weighs the micro-batches of a Trainer.

Shapes: b samples of a micro-batch of this rank, B of the world batch, T tokens, D width, K sketch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.integrations.mixer_state import restore_mixer
from dograph.mixers.base import Mixer, Report
from dograph.mixers.dograph import DoGraph
from dograph.sketch.head import IGNORED, head_projection, sketched_cross_entropy
from dograph.sketch.projection import Projection
from dograph.sketch.ranks import WorldRows, world_size
from dograph.sketch.recording import replaced_forward
from dograph.sketch.sketcher import Sketcher
from dograph.types import Signals

if TYPE_CHECKING:
    from transformers import Trainer

Mode = Literal["twopass", "head"]
MODES: tuple[Mode, ...] = ("twopass", "head")

logger = logging.getLogger("dograph.integrations.hf")


class SketchingHead:
    """Stands in for an output layer: hidden states in, the loss and sketch of each sample out.

    Inside the model's forward its weight is seen by DDP, and the loss is part of a compiled graph.
    """

    def __init__(self, layer: nn.Linear, projection: Projection) -> None:
        self.layer, self.projection = layer, projection
        self.epoch = -1

    def open(self, target_bT: Tensor, step: int) -> None:
        self.target_bT = target_bT
        if self.epoch != (epoch := self.projection.epoch(step)):
            self.sides = head_projection(self.layer.weight, self.projection, step=epoch)
            self.epoch = epoch

    def forward(self, hidden_bTD: Tensor) -> Tensor:
        kind = hidden_bTD.device.type
        if torch.is_autocast_enabled(kind):
            hidden_bTD = hidden_bTD.to(torch.get_autocast_dtype(kind))
        loss_b, sketch_bK = sketched_cross_entropy(
            hidden_bTD, self.layer.weight, self.target_bT, self.sides
        )
        return torch.cat([loss_b[:, None], sketch_bK], dim=1)


class Weighing:
    """An attached mixer: what the Trainer calls in place of its own methods, and beside them."""

    def __init__(
        self,
        trainer: "Trainer",
        mixer: Mixer,
        mode: Mode,
        projection: Projection,
        sources: str | None,
        exclude: tuple[str, ...],
    ) -> None:
        self.trainer, self.mixer, self.sources = trainer, mixer, sources
        self.mode = mode if "sketch" in mixer.needs else None
        self.projection, self.exclude = projection, exclude
        self.stock_train: Callable[..., Any] = trainer.train
        self.stock_step: Callable[..., Tensor] = trainer.training_step
        self.stock_batches: Callable[..., Any] = trainer.get_batch_samples
        self.resumed = False  # a mixer that was restored has its warm-up from its first start
        self.unweighted: Tensor | None = None

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        from transformers.trainer_utils import get_last_checkpoint

        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.trainer.args.output_dir)
        self.resumed = bool(folder)
        if folder:
            restore_mixer(self.mixer, Path(folder))
        return self.stock_train(resume_from_checkpoint, *args, **kwargs)

    def begin(self, args: Any, state: Any) -> None:
        """The model is where it will be trained, and the number of steps is known."""
        if self.mode == "head":
            self.head = SketchingHead(self.trainer.model.get_output_embeddings(), self.projection)
        if self.mode == "twopass":
            self.sketcher = Sketcher(
                self.trainer.model,
                mode="twopass",
                dim=self.projection.dim,
                seed=self.projection.seed,
                refresh=self.projection.refresh,
                exclude=self.exclude,
            )
        if not self.resumed:
            self.mixer.warm_up(state.max_steps)
        if args.gradient_accumulation_steps > 1 and state.is_world_process_zero:
            logger.warning(
                "gradient_accumulation_steps=%d: each micro-batch is weighed by the domains known "
                "before its step (lagged weights)",
                args.gradient_accumulation_steps,
            )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """All micro-batches of a step, so the world batch's size is known."""
        batches, num_items = self.stock_batches(*args, **kwargs)
        device = self.trainer.args.device
        # Asked before the device has work to do, once for all that is gathered.
        self.rows = [WorldRows(len(_input(batch, "input_ids")), device) for batch in batches]
        self.num_samples = world_size() * sum(rows.num_local for rows in self.rows)
        self.seen: list[Signals] = []
        self.weights: list[Tensor] = []
        return batches, num_items

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *_: Any) -> Tensor:
        given, device = dict(inputs), self.trainer.args.device
        label_bT = _input(given, "labels").to(device)
        self.target_bT = F.pad(label_bT[:, 1:], (0, 1), value=IGNORED)
        self.source_b = None
        if self.sources is not None:
            self.source_b = _input(given, self.sources).to(device)
            del given[self.sources]
        with self._watching(_input(given, "input_ids").to(device)):
            self.trainer.compute_loss_func = self.loss
            try:
                # Without a number of items: with one, the Trainer multiplies by the processes.
                return self.stock_step(model, given, None)
            finally:
                self.trainer.compute_loss_func = None

    def loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        """sum_i c_i loss_i over this micro-batch, times the processes, over which DDP averages."""
        loss_b, sketch_bK, block_norm_b = self._see(outputs)
        step = self.trainer.state.global_step
        signals = Signals(
            step=step,
            num_samples=len(loss_b),
            device=loss_b.device,
            loss_B=loss_b.detach(),
            source_B=self.source_b,
            sketch_BK=sketch_bK,
            block_norm_B=block_norm_b,
            projection=self.projection.epoch(step),
        )
        return (self._weigh(signals).to(loss_b.dtype) * loss_b).sum()

    @contextmanager
    def _watching(self, token_bT: Tensor) -> Iterator[None]:
        step = self.trainer.state.global_step
        with ExitStack() as stack:
            if self.mode == "twopass":
                with self.trainer.accelerator.autocast():  # slots take the layers' precision
                    stack.enter_context(self.sketcher.record(token_bT, step))
            if self.mode == "head":
                self.head.open(self.target_bT, step)
                stack.enter_context(replaced_forward(self.head.layer, self.head.forward))
            yield

    def _see(self, outputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The loss of each sample, its sketch, and the norm of that from the blocks."""
        if self.mode == "head":
            loss_b, sketch_bK = outputs.logits[:, 0], outputs.logits[:, 1:].detach()
            return loss_b, sketch_bK, sketch_bK.norm(dim=1)
        nll_n = F.cross_entropy(
            outputs.logits.float().flatten(0, 1), self.target_bT.flatten(), reduction="none"
        )
        num_valid_b = (self.target_bT != IGNORED).sum(dim=1).clamp_min(1)
        loss_b = nll_n.view_as(self.target_bT).sum(dim=1) / num_valid_b
        if self.mode is None:
            return loss_b, None, None
        sketch = self.sketcher.sketch(loss_b)
        return loss_b, sketch.sketch_BK, sketch.block_norm_B

    def _weigh(self, micro: Signals) -> Tensor:
        self.seen.append(micro)
        if len(self.rows) == 1:
            self.weight_B = self.mixer.weigh(self._world())
            return self.rows[0].local(self.weight_B)
        if isinstance(self.mixer, DoGraph):
            weight_b = self.mixer.weigh_lagged(micro, self.num_samples)
        else:  # it needs nothing, so it weighs all alike
            equal_B = self.mixer.weigh(replace(micro, num_samples=self.num_samples))
            weight_b = equal_B[: micro.num_samples]
        self.weights.append(weight_b)
        if len(self.seen) == len(self.rows):
            world = self._world()
            every = zip(self.rows, self.weights, strict=True)
            self.weight_B = torch.cat([rows.gather(weight_b) for rows, weight_b in every])
            if isinstance(self.mixer, DoGraph):
                self.mixer.observe(world, self.weight_B)
        return weight_b * world_size()

    def _world(self) -> Signals:
        """Every rank's samples, micro-batch after micro-batch: no matter how many ranks."""

        def whole(parts: list[Tensor | None]) -> Tensor | None:
            every = zip(self.rows, parts, strict=True)
            known = [rows.gather(part) for rows, part in every if part is not None]
            return torch.cat(known) if known else None

        loss_B = whole([micro.loss_B for micro in self.seen])
        assert loss_B is not None
        self.unweighted = loss_B.mean()
        return replace(
            self.seen[0],
            num_samples=len(loss_B),
            loss_B=loss_B,
            source_B=whole([micro.source_B for micro in self.seen]),
            sketch_BK=whole([micro.sketch_BK for micro in self.seen]),
            block_norm_B=whole([micro.block_norm_B for micro in self.seen]),
        )

    def report(self) -> dict[str, float]:
        """The mixer's, of the last step, as far as it can be logged; this waits for the device."""
        assert self.unweighted is not None
        own: Report = {
            "loss/unweighted": self.unweighted,
            "weights/effective_samples": 1 / self.weight_B.square().sum(),
        }
        return _numbers({**own, **self.mixer.report()})


def _numbers(report: Report) -> dict[str, float]:
    """Summaries alone: vectors, by domain or sample, would be dozens of names in every line."""
    values = dict(report.items())
    if (count_M := values.get("domains/samples")) is not None:
        values["domains/number"] = (torch.as_tensor(count_M) > 0).sum()
    return {
        name: float(value)
        for name, value in values.items()
        if not (isinstance(value, Tensor) and value.dim())
    }


def _input(inputs: Mapping[str, Any], name: str) -> Tensor:
    if name not in inputs:
        raise ConfigError(
            f"the batch has no {name}, only {sorted(inputs)}; a sample needs input_ids and labels, "
            "and its source where `sources` names it"
        )
    value: Tensor = inputs[name]
    return value
