"""What is measured: checked, and by default what suits the device."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from dograph.choices import MODES, Accumulation, Mode
from dograph.config import DEFAULT_DIM, RunConfig, resolve_config
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.dograph import RECIPES
from dograph.models.presets import PRESETS
from dograph.rng import stream
from dograph.types import Batch, Mixture, SampleIds

Dtype = Literal["float32", "bfloat16"]
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
    profile: bool = False
    peak_tflops: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        named: list[tuple[str, str, Collection[str]]] = [
            ("--model", self.model, PRESETS),
            ("--recipe", self.recipe, RECIPES),
            ("--dtype", self.dtype, get_args(Dtype)),
            ("--accumulation", self.accumulation or "lagged", get_args(Accumulation)),
            *(("--modes names", mode, MODES) for mode in self.modes),
        ]
        for what, value, allowed in named:
            if value not in allowed:
                raise ConfigError(f'{what} "{value}": {did_you_mean(value, allowed)}')
        if self.peak_tflops is not None and not self.peak_tflops > 0:
            raise ConfigError(
                f"--peak-tflops {self.peak_tflops:g}: give a number above 0, or leave it out to "
                "have it known or measured"
            )
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
    def accumulates(self) -> Accumulation | None:
        """How weights meet the gradients of several micro-batches; None where there is but one."""
        if (self.micro_batch or self.batch) >= self.batch:
            return None
        return self.accumulation or ("lagged" if self.recipe == "safe" else "two_sweeps")

    @property
    def warmup_steps(self) -> int:
        return WARMUP_STEPS.get(self.recipe, LEAST_WARMUP_STEPS)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.seq_len

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")

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


# What the arms are fed: random tokens, or a prepared corpus as the trainer reads it.


Batches = Callable[[int], Batch]  # by step
NUM_BATCHES = 4  # random ones that take turns


def open_batches(options: BenchOptions, device: torch.device) -> Batches:
    """The batch of every step, the same for all arms."""
    on_gpu = device.type == "cuda"
    if options.corpus is None:
        made = [_random_batch(options, i, pin=on_gpu) for i in range(NUM_BATCHES)]
        return lambda step: made[step % NUM_BATCHES]
    corpus = Corpus(options.corpus)
    if corpus.vocab_size > options.vocab_size:
        raise ConfigError(
            f"{options.corpus} has a vocabulary of {corpus.vocab_size}, more than "
            f"--vocab-size {options.vocab_size}; raise that"
        )
    sampler = Sampler(
        corpus.train, seq_len=options.seq_len, batch_size=options.batch, seed=options.seed
    )
    tokens = {name: float(count) for name, count in corpus.tokens_by_source().items()}
    sampler.remix(0, Mixture.normalised(tokens), "plan")
    loader = Loader(corpus, sampler, pin=on_gpu)
    # Read before it is timed: that a loader keeps up is another question.
    drawn = [loader.load(step, ahead=False) for step in range(4 * NUM_BATCHES)]
    loader.close()
    return lambda step: drawn[step % len(drawn)]


def _random_batch(options: BenchOptions, number: int, *, pin: bool) -> Batch:
    """Tokens drawn as words are, p ~ 1 / (rank + 2.7): adding rows of an embedding meets itself."""
    draw = stream(options.seed, "bench tokens", number)
    share_V = 1 / (np.arange(options.vocab_size) + 2.7)
    shape = (options.batch, options.seq_len)
    drawn_BT = draw.choice(options.vocab_size, size=shape, p=share_V / share_V.sum())
    token_BT, source_B = torch.from_numpy(drawn_BT), torch.zeros(options.batch, dtype=torch.int64)
    if pin:
        token_BT, source_B = token_BT.pin_memory(), source_B.pin_memory()
    ids = SampleIds(*[np.zeros(options.batch, dtype=np.int64)] * 5)
    return Batch(token_BT=token_BT, source_B=source_B, ids=ids)
