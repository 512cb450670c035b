"""The same sketch from gradients that are there in full: what `exact` and `reference` use.

Slower than taps and independent of them, so each checks the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dograph.modes import TWO_SIDED
from dograph.sketch.assembly import VECTORS
from dograph.sketch.bank import Bank
from dograph.sketch.gradients import Gradients
from dograph.sketch.pending import Half
from dograph.sketch.rules import Rule


def sketch_gradients(
    rules: Iterable[Rule], bank: Bank, gradients: Gradients, step: int
) -> dict[str, Tensor]:
    """Sketches (B, K) by group from per-sample gradients (B, *shape) by parameter name."""
    projection = bank.projection
    groups: dict[str, list[Tensor]] = {}
    vectors: list[Tensor] = []
    done = set()
    some = next(iter(gradients.values()))
    for rule in rules:
        for own, name in sorted(rule.names.items(), key=lambda item: item[0] != "weight"):
            if name in done:  # a tied parameter's gradient already holds both of its uses
                continue
            done.add(name)
            gradient = gradients.get(name)
            if own in rule.vectors and projection.kind in TWO_SIDED:
                if gradient is None:  # its layer reached no loss, but has its place
                    size = int(getattr(rule.module, own).numel())
                    gradient = some.new_zeros(len(some), size)
                vectors.append(gradient)
            elif gradient is not None:
                part = _sketch(bank, name, gradient, step)
                groups.setdefault(rule.group, []).append(part)
    if vectors:
        vector_BF = torch.cat(vectors, dim=1)
        groups.setdefault("rest", []).append(bank.fold(VECTORS)(vector_BF))
    if projection.kind == "none":
        return {group: torch.cat(parts, dim=1) for group, parts in groups.items()}
    return {group: torch.stack(parts).sum(dim=0) for group, parts in groups.items()}


def _sketch(bank: Bank, name: str, gradient: Tensor, step: int) -> Tensor:
    kind = bank.projection.kind
    if kind == "none":
        return gradient.flatten(1)
    if kind == "gaussian":
        return bank.projection.dense(name, gradient.flatten(1), step=step)
    return bank.matrix(name).of_gradient(gradient)


def one_backward_per_sample(loss_B: Tensor, parameters: dict[str, nn.Parameter]) -> Gradients:
    """Per-sample gradients the obvious way."""
    rows = [
        torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for loss in loss_B
    ]
    return {
        name: torch.stack(
            [torch.zeros_like(parameter) if row[i] is None else row[i] for row in rows]
        )
        for i, (name, parameter) in enumerate(parameters.items())
    }


def materialised(halves: list[Half], vectors: list[tuple[Rule, Tensor]]) -> Gradients:
    """Per-sample gradients from what layers left; the uses of a tied parameter are added."""
    total: Gradients = {}
    found = [rule.per_sample(left, right) for rule, left, right in halves]
    for part in [*found, *(rule.split(vector_BF) for rule, vector_BF in vectors)]:
        for name, gradient in part.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total
