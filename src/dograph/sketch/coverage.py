"""Which rule covers which layer, and which parameters no rule covers."""

from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dograph.errors import ConfigError, did_you_mean
from dograph.sketch.rules import EmbeddingRule, MatrixRule, NormRule, Rule, known_by_name

_KNOWN = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while isinstance(model, DistributedDataParallel | torch._dynamo.OptimizedModule):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    return model


def cover(
    model: nn.Module, exclude: tuple[str, ...] = (), *, only: nn.Module | None = None
) -> list[Rule]:
    """A rule for every layer with trainable parameters; raises where one has none.

    `exclude` names parameters, or modules with all of theirs, to leave out of the sketch; `only`
    is the one layer to look at.
    """
    # One name for each trainable parameter, tied or not, by its identity.
    canonical = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not canonical:
        raise ConfigError("the model has no trainable parameter: nothing has a gradient to sketch")
    left_out = _left_out(model, canonical, exclude)
    # Rows of the largest embedding: tables and heads of that size are sketched wider.
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    rows = max(tables, default=None)
    rules: list[Rule] = []
    unknown = []
    for path, module in model.named_modules():
        own = {
            name: canonical[id(parameter)]
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and canonical[id(parameter)] not in left_out
        }
        if not own or (only is not None and module is not only):
            continue
        if problem := _problem(module, own):
            unknown.append(f"{path or type(model).__name__} ({problem}): {', '.join(own.values())}")
        elif isinstance(module, nn.Embedding):
            rules.append(EmbeddingRule(path, module, own, wide=module.num_embeddings == rows))
        elif isinstance(module, nn.Linear) or known_by_name(module) == "Conv1D":
            wide = rows is not None and module.get_parameter("weight").shape[0] == rows
            rules.append(MatrixRule(path, module, own, wide=wide))
        else:
            rules.append(NormRule(path, module, own, wide=False))
    if unknown:
        raise ConfigError(
            "no rule to sketch these layers:\n  "
            + "\n  ".join(unknown)
            + "\nLeave their parameters out of the sketch with exclude=[...] (mode twopass still "
            "trains them), freeze them, or sketch from the output layer alone (mode head)."
        )
    if not rules:
        raise ConfigError("every trainable parameter is excluded: nothing is left to sketch")
    return rules


@runtime_checkable
class HoldsOutputLayer(Protocol):
    """What computes more than the output layer, the loss for one, and names that layer."""

    @property
    def layer(self) -> nn.Module: ...


def output_layer(model: nn.Module, head: nn.Module | None) -> nn.Module:
    """The layer that mode head sketches: the one given, or the model's last matrix."""
    if head is not None:
        return head.layer if isinstance(head, HoldsOutputLayer) else head
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError(
            "the model has no Linear layer to take for its output; name it: Sketcher(head=...)"
        )
    return layers[-1]


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The model's stack of blocks: the ModuleList that holds the most parameters."""
    stacks = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not stacks:
        raise ConfigError(
            "the model has no ModuleList of blocks to cut, to compile or to shard; mode "
            "topdown, train.compile and train.shard need one, mode full does not"
        )
    return max(stacks, key=lambda stack: sum(p.numel() for p in stack[1].parameters()))


def _left_out(
    model: nn.Module, canonical: dict[int, str], exclude: tuple[str, ...]
) -> frozenset[str]:
    """Canonical names of the excluded parameters; a tied one may go by any of its names."""
    names = {
        name: canonical[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    left_out = set()
    for entry in exclude:
        found = [n for n in names if n == entry or n.startswith(f"{entry}.")]
        if not found:
            raise ConfigError(
                f'exclude names "{entry}", which is no trainable parameter or module; '
                f"{did_you_mean(entry, names)}"
            )
        left_out |= {names[name] for name in found}
    return frozenset(left_out)


def _problem(module: nn.Module, own: dict[str, str]) -> str | None:
    kind = type(module).__name__
    if not set(own) <= {"weight", "bias"}:
        return f"{kind} with bare parameters"
    known = next((base for base in _KNOWN if isinstance(module, base)), None)
    if known is not None and type(module).forward is not known.forward:
        return f"{kind}, which does not compute what {known.__name__} does"
    if isinstance(module, nn.Embedding):
        strange = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return "Embedding with max_norm, scale_grad_by_freq or sparse" if strange else None
    if "weight" not in own:
        return f"{kind} with a frozen, excluded or missing weight beside a trained bias"
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) > 1:
        return f"{kind} over several axes"
    return None if known is not None or known_by_name(module) else kind
