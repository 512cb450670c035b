"""The rule of norms: LayerNorm, RMSNorm, and Hugging Face's own RMSNorms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.rules import RMS_NORM_OFFSETS, Rule, known_by_name, over_tokens, widened


class NormRule(Rule):
    """LayerNorm and RMSNorm: the per-sample gradients are short enough to hold."""

    matrix = None
    vectors = ("weight", "bias")

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

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        grad = widened(grad)
        # All axes but the sample's and the norm's own: tokens, and heads where it runs on each.
        weight_BF = over_tokens((grad * self.normalised(seen)).flatten(1, -2))
        if "bias" not in self.vectors:
            return weight_BF
        return torch.cat((weight_BF, over_tokens(grad.flatten(1, -2))), dim=1)
