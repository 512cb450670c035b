"""A model's parameters in a few named parts, so that it can be told where a difference sits."""

from collections.abc import Callable

from dograph.models.loss import PerSampleLoss
from dograph.sketch.coverage import blocks_of
from dograph.sketch.embedding import EmbeddingRule
from dograph.sketch.norm import NormRule
from dograph.sketch.rules import Rule

MOST_BLOCKS = 8  # deeper models are shown by thirds: 8 blocks of two parts, and four parts more


def part_names(model: PerSampleLoss) -> Callable[[Rule], str]:
    """From a layer's rule to its part: embedding, attention or mlp of a block, norms, head."""
    stack, blocks = blocks_of(model)
    head = model.model.get_output_embeddings()
    names = _block_names(len(blocks))

    def part(rule: Rule) -> str:
        if isinstance(rule, EmbeddingRule):
            return "embedding"
        if isinstance(rule, NormRule):
            return "norms"
        if rule.module is head:
            return "head"
        inside = rule.path.removeprefix(f"{stack}.")
        if inside == rule.path:
            return "other"
        number, _, layer = inside.partition(".")
        return f"{names[int(number)]} {'attention' if 'att' in layer else 'mlp'}"

    return part


def _block_names(count: int) -> list[str]:
    if count <= MOST_BLOCKS:
        return [f"block {i}" for i in range(count)]
    ends = [count // 3, count - count // 3, count]
    starts = [0, *ends[:-1]]
    third_of = [next(t for t, end in enumerate(ends) if i < end) for i in range(count)]
    return [f"blocks {starts[t]}-{ends[t] - 1}" for t in third_of]
