"""The rule of norms: LayerNorm, RMSNorm, and Hugging Face's own RMSNorms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.projection import Fold, Projection
from dograph.sketch.rule import RMS_NORM_OFFSETS, Gradients, Rule, known_by_name, widened


class NormRule(Rule):
    """LayerNorm and RMSNorm: the per-sample gradients are short enough to hold."""

    def normalised(self, value: Tensor) -> Tensor:
        module = self.module
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(widened(value), module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(widened(value), tuple(module.normalized_shape), eps=module.eps)
        eps: float = module.variance_epsilon if "variance_epsilon" in vars(module) else module.eps
        wide = value.to(torch.float32)  # as Hugging Face does, whatever the model's precision
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(value.dtype)

    def detached(self, value: Tensor) -> Tensor:
        module = self.module
        weight: Tensor = module.weight.detach()
        if isinstance(module, nn.LayerNorm):
            bias = None if module.bias is None else module.bias.detach()
            return F.layer_norm(value, module.normalized_shape, weight, bias, module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(value, tuple(module.normalized_shape), weight, module.eps)
        return (weight + RMS_NORM_OFFSETS[known_by_name(module)]) * self.normalised(value)

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        grad = widened(grad)
        # All axes but the sample's and the norm's own: tokens, and heads where it runs on each.
        return (
            (grad * self.normalised(seen)).flatten(1, -2).sum(dim=1),
            grad.flatten(1, -2).sum(dim=1),
        )

    def left_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(self.module.weight.dtype, torch.float32)

    right_dtype = left_dtype

    def slot_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        width: int = self.module.weight.numel()
        return (shape[0], width), (shape[0], width)

    def project(self, projection: Projection, step: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        weight: Tensor = self.module.weight
        tensors: list[Tensor] = []
        for name in self.names.values():
            fold = projection.fold(name, weight.numel(), step=step, like=weight)
            tensors += [fold.index_N, fold.sign_N]
        return tuple(tensors)

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        assert self.sketch_slot is not None
        dim = self.sketch_slot.shape[1]
        total = Fold(projection[0], projection[1], dim)(left)
        if "bias" in self.names:
            total = total + Fold(projection[2], projection[3], dim)(right)
        return total

    def weighted(self, left: Tensor, right: Tensor, weight_B: Tensor) -> Gradients:
        return {name: weight_B @ vector for name, vector in self.per_sample(left, right).items()}

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        gradients = {self.names["weight"]: left}
        if "bias" in self.names:
            gradients[self.names["bias"]] = right
        return gradients
