"""AdamW, and its state as named tensors."""

import torch
from torch import Tensor, nn

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
