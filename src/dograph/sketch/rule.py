"""One rule a layer type: what its per-sample gradient is made of, sketched and weighted.

Every rule answers four questions about a layer with input a and output gradient b:
`halves` (what to keep of a and b), `sketch` (the projected per-sample gradient), `weighted` (the
gradient of sum_i c_i loss_i) and `per_sample` (each sample's gradient in full).

    Linear, Conv1D   G_i = sum_t b_it a_it'           sketch: (b P_out)'(a P_in), summed over t
    bias             sum_t b_it                       one more input, always 1
    Embedding        rows of b added up by token      P_row of the token takes the place of a P_in
    norms            sum_t b_it * xhat_it, sum_t b_it exact vectors, hashed into the slot

Attention, RoPE and gates have no parameters: b already holds their backward. A parameter used
twice (tied embeddings) has one projection, and its sketches add up, cross term included.

Shapes: B samples, T tokens, N = B T, K sketch.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from dograph.sketch.projection import Projection
from dograph.sketch.tap import Tap, make_slot

Gradients = dict[str, Tensor]

# How RMSNorms of Hugging Face scale: by their weight, or by 1 + weight.
RMS_NORM_OFFSETS = {
    "LlamaRMSNorm": 0,
    "MistralRMSNorm": 0,
    "MixtralRMSNorm": 0,
    "Phi3RMSNorm": 0,
    "Qwen2RMSNorm": 0,
    "Qwen3RMSNorm": 0,
    "SmolLM3RMSNorm": 0,
    "T5LayerNorm": 0,
    "GemmaRMSNorm": 1,
    "Gemma2RMSNorm": 1,
    "Gemma3RMSNorm": 1,
}


def known_by_name(module: Any) -> str:
    """Conv1D or one of Hugging Face's norms, also where a wrapper made a class of its own of it."""
    for kind in type(module).__mro__:
        known = kind.__name__ == "Conv1D" or kind.__name__ in RMS_NORM_OFFSETS
        if known and type(module).forward is vars(kind).get("forward"):
            return str(kind.__name__)
    return ""


class Rule:
    """A layer, its canonical parameter names and its slots."""

    def __init__(self, path: str, module: Any, names: dict[str, str], *, wide: bool) -> None:
        self.path, self.names, self.wide = path, names, wide
        self.module: Any = module
        self.taps = True  # else the layer runs as it always does
        self.defers = False  # whether its weight gradient is made later, from a and b
        self.listening = False  # whether the running backward is the one that asks the slots
        self.calls = 0  # tapped forwards since recording began
        self.num_samples = 0
        self.sketch_slot: Tensor | None = None
        self.left_slot: Tensor | None = None
        self.right_slot: Tensor | None = None
        self.projection: tuple[Tensor, ...] = ()

    @property
    def group(self) -> Literal["blocks", "rest"]:
        """Which part of the sketch: the matrices of the blocks, or all else."""
        return "rest"

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the layer does while it is recorded."""
        value = args[0] if args else next(iter(kwargs.values()))
        taps = self.taps and torch.is_grad_enabled()
        output: Tensor = (
            self.detached(value)
            if taps and self.defers
            else type(self.module).forward(self.module, *args, **kwargs)
        )
        if not taps:
            return output
        self.calls += 1
        output = self.spread(output)
        tapped: Tensor = Tap.apply(  # type: ignore[no-untyped-call]
            output,
            self.seen(value, output),
            self.sketch_slot,
            self.left_slot,
            self.right_slot,
            self,
            *self.projection,
        )
        return tapped

    def open_slots(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """Slots for a and b of this many samples and tokens."""
        left, right = self.slot_shapes(shape)
        self.left_slot = make_slot(left, self.left_dtype(dtype), self.device)
        self.right_slot = make_slot(right, self.right_dtype(dtype), self.device)

    def half_slots(self) -> tuple[Tensor, Tensor]:
        assert self.left_slot is not None
        assert self.right_slot is not None
        return self.left_slot, self.right_slot

    @property
    def device(self) -> torch.device:
        place: torch.device = self.module.weight.device
        return place

    def left_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def right_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def detached(self, value: Tensor) -> Tensor:
        """The layer with its parameters out of the graph: no weight gradient is computed."""
        raise NotImplementedError

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        """What to keep of the input."""
        return value.detach()

    def spread(self, output: Tensor) -> Tensor:
        """The output with one row a sample."""
        return output

    def slot_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        raise NotImplementedError

    def project(self, projection: Projection, step: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """This layer's share of the projection, as tensors."""
        raise NotImplementedError

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        return seen, grad

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        raise NotImplementedError

    def weighted(self, left: Tensor, right: Tensor, weight_B: Tensor) -> Gradients:
        raise NotImplementedError

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        raise NotImplementedError


def widened(value: Tensor) -> Tensor:
    """At least float32: sums over tokens must not be rounded to bfloat16."""
    return value if value.dtype == torch.float64 else value.float()
