"""The same sketch from gradients that are there in full: what `exact` and `reference` use.

Slower than taps and independent of them, so each checks the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dograph.sketch.matrix import MatrixRule
from dograph.sketch.norm import NormRule
from dograph.sketch.projection import MatrixProjection, Projection
from dograph.sketch.rule import Gradients, Rule


def sketch_gradients(
    rules: Iterable[Rule], projection: Projection, gradients: Gradients, step: int
) -> dict[str, Tensor]:
    """Sketches (B, K) by group from per-sample gradients (B, *shape) by parameter name."""
    groups: dict[str, list[Tensor]] = {}
    done = set()
    for rule in rules:
        for local, name in rule.names.items():
            if (
                name not in done and name in gradients
            ):  # a tied parameter's gradient already holds both of its uses
                done.add(name)
                part = _sketch(rule, local, projection, gradients[name], step)
                groups.setdefault(rule.group, []).append(part)
    if projection.kind == "none":
        return {group: torch.cat(parts, dim=1) for group, parts in groups.items()}
    return {group: torch.stack(parts).sum(dim=0) for group, parts in groups.items()}


def _sketch(rule: Rule, local: str, projection: Projection, gradient: Tensor, step: int) -> Tensor:
    name = rule.names[local]
    if projection.kind == "none":
        return gradient.flatten(1)
    if projection.kind == "gaussian":
        return projection.dense(name, gradient.flatten(1), step=step)
    if isinstance(rule, NormRule):
        return projection.fold(name, gradient.shape[1], step=step, like=gradient)(gradient)
    sides = rule.project(projection, step, gradient.dtype)
    matrix = MatrixProjection.from_tensors(sides, projection.dim)
    if local == "weight":
        return matrix.of_gradient(gradient)
    assert isinstance(rule, MatrixRule)
    return matrix.of_bias(gradient, bias_on="col" if rule.inputs_on_rows else "row")


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


def materialised(kept: list[tuple[Rule, Tensor, Tensor]]) -> Gradients:
    """Per-sample gradients from layers' halves; the uses of a tied parameter are added."""
    total: Gradients = {}
    for rule, left, right in kept:
        for name, gradient in rule.per_sample(left, right).items():
            total[name] = total[name] + gradient if name in total else gradient
    return total
