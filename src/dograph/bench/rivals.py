"""What one would do without taps: the same weighted step by other means.

    loop     one backward a sample, each gradient sketched; then a weighted backward of the batch
    vmap     torch.func's per-sample gradients, a dense Gaussian projection, their weighted sum
    opacus   ghost clipping: a backward for the norms of all samples, a second one with weights

All run eagerly, in the precision of the other arms. What does not fit is measured on fewer samples
and counted by the sample.

Shapes: B samples, T tokens, K sketch, F numbers of a gradient.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dograph.bench.arms import open_model, release
from dograph.bench.batches import Batches
from dograph.bench.options import BenchOptions
from dograph.bench.timing import Timer
from dograph.mixers.registry import build_mixer
from dograph.sketch.assembly import Assembly
from dograph.sketch.coverage import cover
from dograph.sketch.explicit import sketch_gradients
from dograph.sketch.projection import Projection
from dograph.train.optim import build_optimizer
from dograph.types import Signals

STEPS = 2
SECONDS = 8.0  # after which no further step is begun


@dataclass(frozen=True, slots=True)
class Rival:
    """A step by other means."""

    step: Callable[[], float]  # returns seconds that it left out and reckoned by proportion
    num_samples: int
    note: Callable[[], str]


Opener = Callable[[BenchOptions, Batches, torch.device], Rival]


def measure_rival(
    opener: Opener, options: BenchOptions, batches: Batches, timer: Timer
) -> dict[str, Any]:
    """Milliseconds of some steps of a rival, nothing else being on the device."""
    release(timer.device)
    if timer.on_gpu:
        torch.cuda.reset_peak_memory_stats(timer.device)
    held = timer.held()
    rival = opener(options, batches, timer.device)
    spent: list[float] = []
    begun = time.perf_counter()
    for turn in range(STEPS + 1):
        timer.wait()
        start = time.perf_counter()
        left_out = rival.step()
        timer.wait()
        spent.append(time.perf_counter() - start + left_out)
        if turn > 0 and time.perf_counter() - begun > SECONDS:
            break
    peak = torch.cuda.max_memory_allocated(timer.device) - held if timer.on_gpu else None
    return {
        "ms": 1e3 * statistics.median(spent[1:]),  # the first one warms up
        "steps": len(spent) - 1,
        "num_samples": rival.num_samples,
        "peak_bytes": peak,
        "note": rival.note(),
    }


class GradientSketcher:
    """The very sketch that taps make, of gradients that are there in full."""

    def __init__(self, model: nn.Module, projection: Projection) -> None:
        self.projection, self.rules = projection, cover(model)
        weight = next(model.parameters())
        self.assembly = Assembly(self.rules, projection, None, weight.dtype, weight.device)

    def __call__(self, gradients: dict[str, Tensor], step: int) -> tuple[Tensor, Tensor]:
        """Sketches (B, K), and the norms of their part from the blocks, of gradients (B, ...)."""
        self.assembly.draw(step)
        groups = sketch_gradients(self.rules, self.assembly.bank, gradients, step)
        return torch.stack(list(groups.values())).sum(dim=0), groups["blocks"].norm(dim=1)


class WeightedStep:
    """What rivals share: the batch, the mixer's weights, the update."""

    def __init__(self, options: BenchOptions, batches: Batches, device: torch.device) -> None:
        self.options, self.batches, self.device = options, batches, device
        self.config = options.config("reference")
        self.num_samples = min(options.micro_batch or options.batch, options.batch)
        self.mixer = build_mixer("dograph", self.config.mixer.options)
        self.done = 0

    def use(self, model: nn.Module) -> None:
        """Train this model."""
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(model, self.config.optim)

    def tokens(self) -> Tensor:
        token_BT = self.batches(self.done).token_BT[: self.num_samples]
        return token_BT.to(self.device, non_blocking=True)

    def autocast(self) -> torch.autocast:
        half = self.options.dtype == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def weigh(self, sketch_BK: Tensor, block_norm_B: Tensor) -> Tensor:
        zero_B = torch.zeros(len(sketch_BK), dtype=torch.int64, device=self.device)
        return self.mixer.weigh(
            Signals(
                step=self.done,
                num_samples=len(sketch_BK),
                device=self.device,
                source_B=zero_B,
                stratum_B=zero_B,
                sketch_BK=sketch_BK,
                block_norm_B=block_norm_B,
                projection=self.done if self.options.recipe == "paper" else 0,
            )
        )

    def update(self) -> None:
        """Clip and step; `.grad` holds the weighted gradient."""
        nn.utils.clip_grad_norm_(self.parameters.values(), self.config.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def counted(self) -> str:
        """How many samples were measured, where not all were."""
        if self.num_samples == self.options.batch:
            return ""
        return f"; {self.num_samples} of {self.options.batch} samples, counted by the sample"


def open_loop(options: BenchOptions, batches: Batches, device: torch.device) -> Rival:
    """One backward a sample; no gradient is kept, so the weighted one takes another backward."""
    work = WeightedStep(options, batches, device)
    work.use(open_model(options, device))
    refresh = work.config.sketch.refresh or "never"
    project = GradientSketcher(
        work.model, Projection(dim=options.dim, seed=options.seed, refresh=refresh)
    )

    def step() -> float:
        token_BT, sketches, norms = work.tokens(), [], []
        for token_1T in token_BT.split(1):
            gradients = sample_gradient(work, token_1T)
            sketch_1K, norm_1 = project(gradients, work.done)
            sketches.append(sketch_1K)
            norms.append(norm_1)
        weight_B = work.weigh(torch.cat(sketches), torch.cat(norms))
        with work.autocast():
            loss_B = work.model(token_BT)
        (weight_B * loss_B).sum().backward()
        work.update()
        return 0.0

    note = "one backward a sample, the same sketch, then a weighted backward; eager"
    return Rival(step, work.num_samples, lambda: note + work.counted())


def sample_gradient(work: WeightedStep, token_1T: Tensor) -> dict[str, Tensor]:
    """The gradient of one sample's loss, with a sample axis."""
    with work.autocast():
        loss = work.model(token_1T).sum()
    found = torch.autograd.grad(loss, list(work.parameters.values()))
    return {name: grad[None] for name, grad in zip(work.parameters, found, strict=True)}
