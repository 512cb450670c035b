"""What a step computes, counted from the shapes of the layers alone.

FLOPs: a product of (N, in) and (in, out) is 2 N in out. A step is a forward and two products of
the same size in the backward for each one in the forward: three forwards. Attention is counted in
full, causal or not. What is no product of matrices (norms, softmax, AdamW) is left out: the usual
convention of MFU.

Sketches: of every layer that is sketched, the input a and the output's gradient b are read once
more and projected, and every sample's sketch is written; a weighted gradient scales the smaller of
a and b (read and written). Below a cut the residual's gradient is scaled once instead. Mode exact
writes every sample's gradient and reads it twice; twopass runs the backward to the activations
again.

Shapes: B samples, T tokens, N = B T, q x p a sketch, K the slot.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from dograph.modes import CUTTING, DEFAULT_DIM, EXPLICIT, TWO_SIDED, Kind
from dograph.sketch.coverage import blocks_of, cover, output_layer
from dograph.sketch.embedding import EmbeddingRule
from dograph.sketch.matrix import MatrixRule
from dograph.sketch.projection import Projection
from dograph.sketch.rules import Rule

WIDE = 4  # bytes of a float32: sketches, embeddings and the residual stream


class Shape(Protocol):
    """What attention's products depend on."""

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int:
        """Heads times their size."""


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one forward over a batch."""

    matrices: float
    attention: float

    @property
    def forward(self) -> float:
        return self.matrices + self.attention

    @property
    def step(self) -> float:
        return 3 * self.forward


def count_flops(model: nn.Module, shape: Shape, num_samples: int, num_tokens: int) -> Flops:
    """FLOPs of a forward of so many samples of so many tokens.

    Every matrix but an embedding's is taken to multiply every token; a mixture of experts, where
    a token meets some of them, is counted too high.
    """
    rows = num_samples * num_tokens
    weights = sum(
        parameter.numel()
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() >= 2
    )
    return Flops(
        matrices=2.0 * rows * weights,
        # Scores and their product with the values: two products a layer, of T x T a head.
        attention=4.0 * rows * num_tokens * shape.width * shape.layers,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Something a mode does that a plain step does not."""

    what: str
    bytes: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the work depends on besides the model."""

    num_samples: int
    num_tokens: int
    half: bool  # bfloat16, else float32
    dim: int = DEFAULT_DIM
    projection: Kind = "rademacher"
    top_blocks: int = 4
    exclude: tuple[str, ...] = ()
    two_sweeps: bool = False  # a first sweep for the sketches, the second one is a plain step
    at_once: int | None = None  # samples of a micro-batch; None: all

    @property
    def rows(self) -> int:
        return self.num_samples * self.num_tokens

    @property
    def size(self) -> int:
        """Bytes of an activation."""
        return 2 if self.half else WIDE


def extra_work(model: nn.Module, shape: Shape, mode: str, setting: Setting) -> list[Work]:
    """What `mode` does beyond a plain step on the same batch."""
    rules = cover(
        model, setting.exclude, only=output_layer(model, None) if mode == "head" else None
    )
    flops = count_flops(model, shape, setting.num_samples, setting.num_tokens)
    if mode in EXPLICIT:
        work = _materialised(rules, setting)
        if mode == "reference":
            # Each goes through the graph of all samples that were computed at once.
            again = ((setting.at_once or setting.num_samples) - 1) * 2 * flops.forward
            work.append(Work("a backward for every other sample", 0, again))
        if setting.two_sweeps:
            work.append(Work("forward again", 0, flops.forward))
            work.append(Work("backward again", 0, 2 * flops.forward))
        return work
    cut = mode in CUTTING
    seen = _above_cut(rules, model, mode, setting.top_blocks) if cut else rules
    work = [_projected(rule, setting) for rule in seen if rule.matrix is not None]
    numbers = sum(sum(rule.vector_sizes().values()) for rule in seen)
    # Their sums over tokens a plain step makes as well, though not sample by sample.
    work.append(Work("vectors", 2.0 * WIDE * setting.num_samples * numbers))
    if setting.two_sweeps:
        work.append(Work("forward again", 0, flops.forward))
    if setting.two_sweeps or mode == "twopass":
        back = (
            _backward(seen, shape, flops, setting) if cut else flops.matrices + 2 * flops.attention
        )
        work.append(Work("backward to the activations", 0, back))
        return work
    work += [_scaled(rule, setting) for rule in seen if rule.matrix is not None]
    if cut:
        work.append(Work("residual scaled", 2.0 * WIDE * setting.rows * shape.width))
    return work


def _above_cut(rules: list[Rule], model: nn.Module, mode: str, top_blocks: int) -> list[Rule]:
    """The layers that are sketched: those of the top blocks, or none of them, and the output's."""
    stack, blocks = blocks_of(model)
    lowest = len(blocks) - top_blocks

    def above(rule: Rule) -> bool:
        if rule.path.startswith(f"{stack}."):
            block = int(rule.path.removeprefix(f"{stack}.").partition(".")[0])
            return mode == "topdown" and block >= lowest
        return isinstance(rule, MatrixRule) or (mode == "topdown" and rule.matrix is None)

    return [rule for rule in rules if above(rule)]


def _sides(rule: Rule, setting: Setting) -> tuple[int, int]:
    return Projection(dim=setting.dim).sides(wide=rule.wide)


def _projected(rule: Rule, setting: Setting) -> Work:
    """Read a and b, project both, sum over tokens, write the sketches."""
    (q, p), rows = _sides(rule, setting), setting.rows
    written, summed = WIDE * setting.num_samples * q * p, 2.0 * rows * q * p
    if isinstance(rule, EmbeddingRule):
        width = rule.module.embedding_dim
        # A token's row of the projection takes the place of the product with a.
        read = rows * (WIDE * width + setting.size * q)
        return Work("projection", read + written, 2.0 * rows * width * p + summed)
    assert isinstance(rule, MatrixRule)
    read = setting.size * rows * (rule.num_inputs + rule.num_outputs)
    on_rows, on_columns = rule.module.weight.shape
    return Work("projection", read + written, 2.0 * rows * (on_rows * q + on_columns * p) + summed)


def _scaled(rule: Rule, setting: Setting) -> Work:
    """The smaller of a and b, read and written."""
    if isinstance(rule, EmbeddingRule):
        return Work("scaling", 2.0 * WIDE * setting.rows * rule.module.embedding_dim)
    assert isinstance(rule, MatrixRule)
    smaller = min(rule.num_inputs, rule.num_outputs)
    return Work("scaling", 2.0 * setting.size * setting.rows * smaller)


def _backward(seen: list[Rule], shape: Shape, flops: Flops, setting: Setting) -> float:
    """FLOPs of the gradients with respect to the inputs of the layers above a cut."""
    matrices = [rule for rule in seen if isinstance(rule, MatrixRule)]
    products: float = sum(
        2.0 * setting.rows * rule.num_inputs * rule.num_outputs for rule in matrices
    )
    return products + 2 * flops.attention * len(_blocks(seen)) / shape.layers


def _blocks(rules: list[Rule]) -> set[str]:
    """The blocks that these layers lie in, by name."""
    names = set()
    for rule in rules:
        parts = rule.path.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is not None:
            names.add(".".join(parts[: number + 1]))
    return names


def _materialised(rules: list[Rule], setting: Setting) -> list[Work]:
    """Every sample's gradient: written once, read for the sketch and for the weighted sum."""
    work, seen = [], set()
    looked_up = {rule.names["weight"] for rule in rules if isinstance(rule, EmbeddingRule)}
    for rule in rules:
        name = rule.names["weight"]
        if rule.matrix is None or name in seen:
            continue
        seen.add(name)
        (on_rows, on_columns), (q, p) = rule.module.weight.shape, _sides(rule, setting)
        numbers = float(setting.num_samples * on_rows * on_columns)
        size = WIDE if name in looked_up else setting.size
        sketched = 2 * numbers * q + 2.0 * setting.num_samples * on_columns * q * p  # (Q'G) P
        if setting.projection not in TWO_SIDED:
            sketched = 2 * numbers * setting.dim if setting.projection == "gaussian" else 0.0
        work.append(Work("gradients written", size * numbers))
        work.append(Work("gradients sketched", size * numbers, sketched))
        if not setting.two_sweeps:
            work.append(Work("gradients weighted", size * numbers, 2 * numbers))
    vectors = sum(sum(rule.vector_sizes().values()) for rule in rules)
    work.append(Work("vectors", 2.0 * WIDE * setting.num_samples * vectors))
    return work
