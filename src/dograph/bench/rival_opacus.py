"""Ghost clipping (Li et al. 2022) as Opacus has it: norms of all samples, then weights.

It knows no sketch: its weights are clipping factors, so the comparison is of the machinery, two
backwards and what the first one computes for each sample. Opacus has no rule for Hugging Face's
Conv1D and refuses tied weights, and its rule for embeddings wants a batch axis: this arm's own
copy of the model has Linear in place of Conv1D, an output layer of its own, and positions for
every sample.

Shapes: B samples, T tokens.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dograph.bench.arms import open_model
from dograph.bench.batches import Batches
from dograph.bench.options import BenchOptions
from dograph.bench.rivals import Rival, WeightedStep
from dograph.errors import require
from dograph.models.loss import PerSampleLoss


def open_opacus(options: BenchOptions, batches: Batches, device: torch.device) -> Rival:
    """Two backwards with Opacus' hooks in the first one."""
    work = WeightedStep(options, batches, device)
    model = acceptable(open_model(options, device))
    work.use(model)
    hooked = hook(model)

    def step() -> float:
        with work.autocast():
            weighted_backward(hooked, work.tokens(), clipping_weights)
        work.update()
        return 0.0

    note = "Opacus ghost clipping; Linear for Conv1D, untied, positions by sample; eager"
    return Rival(step, work.num_samples, lambda: note + work.counted())


def hook(model: nn.Module) -> Any:
    """The model with Opacus' hooks, which keep the norms of every sample's gradient."""
    return require("opacus.grad_sample", "dev").GradSampleModuleFastGradientClipping(
        model, batch_first=True, loss_reduction="sum", strict=False, max_grad_norm=1.0
    )


def weighted_backward(
    hooked: Any, token_BT: Tensor, weigh: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """Fill `.grad` with the gradient of sum_i weight_i loss_i; the weights and the norms.

    Called inside autocast where that is on: the hooks multiply halves of either precision.
    """
    hooked.enable_hooks()
    loss_B = hooked(token_BT)
    with warnings.catch_warnings():
        # Of embeddings, whose inputs are not differentiable; their hooks want no more than outputs.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss_B.sum().backward(retain_graph=True)
        hooked.zero_grad(set_to_none=True)
        weight_B = weigh(hooked).detach()
        hooked.disable_hooks()
        (weight_B * loss_B).sum().backward()
    return weight_B, hooked.get_norm_sample()


def clipping_weights(hooked: Any) -> Tensor:
    coefficient_B: Tensor = hooked.get_clipping_coef()
    return coefficient_B / len(coefficient_B)


def acceptable(model: PerSampleLoss) -> PerSampleLoss:
    """The same function of the same numbers, in layers that Opacus knows; changes the model."""
    inner = model.model
    for parent in list(inner.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D":
                setattr(parent, name, _as_linear(child))
    head = inner.get_output_embeddings()
    if head.weight is inner.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    for table in inner.modules():
        if isinstance(table, nn.Embedding) and table is not inner.get_input_embeddings():
            table.register_forward_pre_hook(_Spread(model))
    return model


class _Spread:
    """Gives positions, which come as one row for all, a row for every sample."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.num_samples = 1
        model.register_forward_pre_hook(self.count)

    def count(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self.num_samples = len(arguments[0])

    def __call__(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        place_1T = arguments[0]
        return (place_1T.expand(self.num_samples, place_1T.shape[-1]).contiguous(),)


def _as_linear(layer: Any) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device=layer.weight.device, dtype=layer.weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(layer.weight.T)
        linear.bias.copy_(layer.bias)
    return linear
