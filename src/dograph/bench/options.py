"""What is measured: checked, and by default what suits the device."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch

from dograph.config import Accumulation, RunConfig
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.dograph_options import RECIPES
from dograph.models.presets import PRESETS
from dograph.modes import DEFAULT_DIM, MODES, Mode
from dograph.presets import resolve_config

Dtype = Literal["float32", "bfloat16"]
HandCompile = Literal["blocks", "whole"]
DEFAULT_MODES: tuple[Mode, ...] = ("full", "topdown", "head", "exact", "twopass")
WARMUP_STEPS = {"safe": 12}  # domains of a stream are found from ten steps
LEAST_WARMUP_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Every choice of a measurement."""

    model: str
    batch: int
    seq_len: int
    vocab_size: int
    dtype: Dtype
    compile: bool
    micro_batch: int | None = None
    accumulation: Accumulation | None = None
    modes: tuple[Mode, ...] = DEFAULT_MODES
    top_blocks: int = 4
    recipe: str = "paper"
    dim: int = DEFAULT_DIM
    steps: int = 30
    corpus: str | None = None
    hand: bool = True
    hand_compile: HandCompile = "blocks"
    rivals: bool = True
    profile: bool = False
    peak_tflops: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in PRESETS:
            raise ConfigError(f'--model "{self.model}": {did_you_mean(self.model, PRESETS)}')
        if self.peak_tflops is not None and not self.peak_tflops > 0:
            raise ConfigError(
                f"--peak-tflops {self.peak_tflops:g}: give a number above 0, or leave it out to "
                "have it known or measured"
            )
        if self.recipe not in RECIPES:
            raise ConfigError(f'--recipe "{self.recipe}": {did_you_mean(self.recipe, RECIPES)}')
        for name, value, kind in (
            ("dtype", self.dtype, Dtype),
            ("hand-compile", self.hand_compile, HandCompile),
            ("accumulation", self.accumulation or "lagged", Accumulation),
        ):
            if value not in get_args(kind):
                raise ConfigError(f'--{name} "{value}": {did_you_mean(value, get_args(kind))}')
        for mode in self.modes:
            if mode not in MODES:
                raise ConfigError(f'--modes names "{mode}": {did_you_mean(mode, MODES)}')
        layers = PRESETS[self.model].layers
        if "topdown" in self.modes and self.top_blocks > layers:
            raise ConfigError(
                f"--top-blocks {self.top_blocks}, but {self.model} has {layers} blocks; give 1 to "
                f"{layers}"
            )
        if self.accumulates == "lagged" and self.recipe != "safe":
            raise ConfigError(
                f"--accumulation lagged with --recipe {self.recipe}: weights of a micro-batch need "
                "domains that are known before it; use --recipe safe or --accumulation two_sweeps"
            )
        for mode in self.modes:
            self.config(mode)

    @property
    def micro_batches(self) -> int:
        return -(-self.batch // (self.micro_batch or self.batch))

    @property
    def accumulates(self) -> Accumulation | None:
        """How weights meet the gradients of several micro-batches; None where there is but one."""
        if self.micro_batches == 1:
            return None
        return self.accumulation or ("lagged" if self.recipe == "safe" else "two_sweeps")

    @property
    def warmup_steps(self) -> int:
        return WARMUP_STEPS.get(self.recipe, LEAST_WARMUP_STEPS)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.seq_len

    def config(self, mode: str | None) -> RunConfig:
        """The run whose step is measured: DoGraph in a mode, or None for a plain one."""
        own = ["mixer.name=natural"]
        if mode is not None:
            own = [
                "mixer.name=dograph",
                f"mixer.recipe={self.recipe}",
                f"sketch.mode={mode}",
                f"sketch.dim={self.dim}",
                f"sketch.top_blocks={self.top_blocks}",
                # The paper draws a new projection in every step; domains that last keep theirs.
                f"sketch.refresh={'step' if self.recipe == 'paper' else 'never'}",
                f"sketch.accumulation={self.accumulates or 'two_sweeps'}",
            ]
        return resolve_config(
            None,
            [
                f"seed={self.seed}",
                f"data.seq_len={self.seq_len}",
                f"model.preset={self.model}",
                f"train.batch_size={self.batch}",
                f"train.micro_batch_size={self.micro_batch or 'null'}",
                f"train.dtype={self.dtype}",
                f"train.compile={str(self.compile).lower()}",
                "train.steps=1000000",
                # So low that no arm can diverge, whatever the tokens.
                "optim.lr=1e-6",
                "optim.lr_start=1e-6",
                "optim.lr_end=1e-6",
                "optim.warmup_steps=0",
                *own,
            ],
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"modes": list(self.modes), "accumulates": self.accumulates}


def resolve_options(device: torch.device, modes: Sequence[str], **given: Any) -> BenchOptions:
    """What was given; the rest as suits the device: seconds on a CPU, the paper's on a GPU."""
    on_gpu = device.type == "cuda"
    default: dict[str, Any] = {
        "model": "gpt2-small" if on_gpu else "demo",
        "batch": 48 if on_gpu else 8,
        "seq_len": 512 if on_gpu else 128,
        "vocab_size": 50257 if on_gpu else 4096,
        "dtype": "bfloat16" if on_gpu else "float32",
        "compile": on_gpu,
    }
    chosen = default | {name: value for name, value in given.items() if value is not None}
    if "top_blocks" not in chosen and chosen["model"] in PRESETS:
        chosen["top_blocks"] = min(4, PRESETS[chosen["model"]].layers)
    return BenchOptions(modes=tuple(modes), **chosen)  # type: ignore[arg-type]
