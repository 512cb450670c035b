"""AdamW, its learning rate by step, and its state as named tensors."""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.config import OptimConfig
from dograph.errors import RunError
from dograph.models.files import pad_rows_into, trim_vocab, whole
from dograph.models.loss import PerSampleLoss

MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone; fused, so that `found_inf` can veto an update."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, config: OptimConfig, total_steps: int) -> float:
    """Linear from lr_start to lr in the warm-up, then half a cosine to lr_end at the last step."""
    if step < config.warmup_steps:
        return config.lr_start + (config.lr - config.lr_start) * step / config.warmup_steps
    decay_steps = max(total_steps - 1 - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / decay_steps, 1.0)
    return config.lr_end + (config.lr - config.lr_end) * (1 + math.cos(math.pi * progress)) / 2


def clip_gradients(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale the gradient down to a norm of `most`; return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, *, keep: bool = True
) -> dict[str, Tensor]:
    """The optimizer's state by moment and parameter name, whole, vocabulary padding cut off."""
    tensors: dict[str, Tensor] = {}
    for moment in MOMENTS:
        named = {
            name: optimizer.state[parameter][moment]
            for name, parameter in model.model.named_parameters()
            if parameter in optimizer.state
        }
        trimmed = trim_vocab(model, whole(named, keep=keep))
        tensors |= {f"{moment}.{name}": tensor for name, tensor in trimmed.items()}
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, tensors: dict[str, Tensor], step: int
) -> None:
    """Put back what `optimizer_tensors` gave after `step` updates."""
    for name, parameter in model.model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not any(f"{moment}.{name}" in tensors for moment in MOMENTS):
            continue  # it never had a gradient
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(float(step), device=parameter.device)
        for moment in MOMENTS:
            if f"{moment}.{name}" not in tensors:
                raise RunError(f"the checkpoint lacks {moment} of {name}; it is of another model")
            state[moment] = torch.zeros_like(parameter)
            pad_rows_into(state[moment], tensors[f"{moment}.{name}"])
