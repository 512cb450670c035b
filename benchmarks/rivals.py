"""What one would do without taps: the same weighted step by other means, and a plain loop by hand.

    python -m benchmarks.rivals model.preset=gpt2-small --out FILE.json

    loop     one backward a sample, each gradient sketched; then a weighted backward of the batch
    vmap     torch.func's per-sample gradients, a dense Gaussian projection, their weighted sum
    opacus   ghost clipping: a backward for the norms of all samples, a second one with weights

    hand     a plain loop written by hand (benchmarks.hand), in turns with the trainer's plain step

Rivals run eagerly, in the precision of the other arms. What does not fit is measured on fewer
samples and counted by the sample.

Shapes: B samples, T tokens, K sketch, F numbers of a gradient.
"""

import argparse
import math
import os
import statistics
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.hand import Batches, open_hand, open_model
from dograph.bench.arms import Arm, BenchOptions, resolve_options
from dograph.bench.session import Session, arm_table, footnotes, release, spread
from dograph.cli.console import open_console, split_settings
from dograph.config import resolve_config
from dograph.errors import ConfigError, require
from dograph.files import write_json
from dograph.mixers.registry import build_mixer
from dograph.models.loss import PerSampleLoss
from dograph.rng import key64
from dograph.sketch.gradients import MicroBatchResult, WorldRows, gather_signals
from dograph.sketch.sketcher import Sketcher
from dograph.train.distributed import pick_device
from dograph.train.step import Stopwatch, build_optimizer


class Rival:
    """A step by other means; what all share: the batch, the mixer's weights, the update."""

    note = ""

    def __init__(self, options: BenchOptions, batches: Batches, device: torch.device) -> None:
        self.options, self.batches, self.device = options, batches, device
        self.config = options.config("reference")
        train = options.run.train
        self.num_samples = min(train.micro_batch_size or train.batch_size, train.batch_size)
        self.mixer = build_mixer(self.config.mixer.name, self.config.mixer.options)
        self.model: Any = self.prepared(open_model(options, device))
        trained = self.model.named_parameters()
        self.parameters = {name: p for name, p in trained if p.requires_grad}
        self.optimizer = build_optimizer(self.model, self.config.optim)
        self.done = 0

    def prepared(self, model: PerSampleLoss) -> nn.Module:
        return model

    def step(self) -> float:
        """One more step; returns seconds that it left out and reckoned by proportion."""
        token_BT = self.batches(self.done).token_BT[: self.num_samples]
        left_out = self.backward(token_BT.to(self.device, non_blocking=True))
        nn.utils.clip_grad_norm_(self.parameters.values(), self.config.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return left_out

    def backward(self, token_BT: Tensor) -> float:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; returns what `step` does."""
        raise NotImplementedError

    def autocast(self) -> torch.autocast:
        half = self.config.train.half
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def weigh(self, results: list[MicroBatchResult]) -> Tensor:
        zero_B = torch.zeros(self.num_samples, dtype=torch.int64, device=self.device)
        signals = gather_signals(
            results,
            [WorldRows(self.num_samples, self.device)],
            losses=False,
            step=self.done,
            source_B=zero_B,
            stratum_B=zero_B,
            projection=self.done if self.config.sketch.refresh == "step" else 0,
        )
        return self.mixer.weigh(signals)


class Loop(Rival):
    """One backward a sample; no gradient is kept, so the weighted one takes another backward."""

    note = "one backward a sample, the same sketch, then a weighted backward; eager"

    def prepared(self, model: PerSampleLoss) -> nn.Module:
        self.sketcher = Sketcher(
            model,
            mode="reference",
            dim=self.config.sketch.dim,
            seed=self.config.seed,
            refresh=self.config.sketch.refresh or "never",
        )
        return model

    def backward(self, token_BT: Tensor) -> float:
        weight_B = self.weigh([self.sketched(token_1T) for token_1T in token_BT.split(1)])
        with self.autocast():
            loss_B = self.model(token_BT)
        (weight_B * loss_B).sum().backward()
        return 0.0

    def sketched(self, token_1T: Tensor) -> MicroBatchResult:
        """The very sketch that taps make, of a gradient that is there in full."""
        with self.sketcher.record(token_1T, self.done):
            with self.autocast():
                loss_1 = self.model(token_1T)
            return self.sketcher.sketch(loss_1).without_gradient()


class Opacus(Rival):
    """Ghost clipping (Li et al. 2022) as Opacus has it: norms of all samples, then weights.

    It knows no sketch: its weights are clipping factors, so the comparison is of the machinery, two
    backwards and what the first one computes for each sample. Opacus has no rule for Hugging Face's
    Conv1D and refuses tied weights, and its rule for embeddings wants a batch axis: this arm's own
    copy of the model has Linear in place of Conv1D, an output layer of its own, and positions for
    every sample.
    """

    note = "Opacus ghost clipping; Linear for Conv1D, untied, positions by sample; eager"

    def prepared(self, model: PerSampleLoss) -> nn.Module:
        """The same function of the same numbers, in layers that Opacus knows, with its hooks."""
        inner = model.model
        for name, layer in list(inner.named_modules()):
            if type(layer).__name__ == "Conv1D":
                inputs, outputs = layer.weight.shape
                linear = nn.Linear(inputs, outputs, device=self.device)
                linear.weight, linear.bias = nn.Parameter(layer.weight.T.contiguous()), layer.bias
                inner.set_submodule(name, linear)
        head = inner.get_output_embeddings()
        if head.weight is inner.get_input_embeddings().weight:
            head.weight = nn.Parameter(head.weight.detach().clone())

        def spread(_: nn.Module, place: tuple[Tensor]) -> tuple[Tensor]:
            """Positions come as one row for all: give every sample its own."""
            return (place[0].expand(self.num_samples, place[0].shape[-1]).contiguous(),)

        for table in inner.modules():
            if isinstance(table, nn.Embedding) and table is not inner.get_input_embeddings():
                table.register_forward_pre_hook(spread)
        hook = require("opacus.grad_sample", "dev").GradSampleModuleFastGradientClipping
        options = {"batch_first": True, "loss_reduction": "sum", "strict": False}
        hooked: nn.Module = hook(model, max_grad_norm=1.0, **options)
        return hooked

    def backward(self, token_BT: Tensor) -> float:
        """Inside autocast where that is on: the hooks multiply halves of either precision."""
        hooked = self.model
        with self.autocast(), warnings.catch_warnings():
            # Of embeddings, whose inputs are not differentiable; their hooks want only outputs.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            hooked.enable_hooks()
            loss_B = hooked(token_BT)
            loss_B.sum().backward(retain_graph=True)
            hooked.zero_grad(set_to_none=True)
            weight_B = hooked.get_clipping_coef().detach() / len(token_BT)
            hooked.disable_hooks()
            (weight_B * loss_B).sum().backward()
        return 0.0


class Vmap(Rival):
    """The textbook way: every sample's gradient in full, on as many as memory has room for."""

    STRETCH = 1 << 14  # rows of the projection that are made at once
    SECONDS = 2.0  # of projecting in a step, after which the rest is reckoned
    AT_ONCE = 8  # samples of one vmap
    TIMES = 2.5  # gradients that a step holds at once: what vmap made, its copy, a little more

    def prepared(self, model: PerSampleLoss) -> nn.Module:
        numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if self.device.type == "cuda":
            free = int(torch.cuda.mem_get_info(self.device)[0])
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        fits = int(0.7 * free / (self.TIMES * 4 * numbers))
        if fits < 1:
            raise ConfigError(
                f"one gradient of {numbers / 1e6:.0f} million numbers and its copies do not fit "
                f"into {0.7 * free / 2**30:.1f} GiB"
            )
        self.num_samples = min(self.num_samples, fits)
        self.plain_note = self.note = (
            f"torch.func.vmap(grad), dense Gaussian {numbers / 1e6:.1f}M x "
            f"{self.config.sketch.dim}; eager, attention unfused"
        )
        return model

    def backward(self, token_BT: Tensor) -> float:
        gradients, loss_B = self.per_sample_gradients(token_BT)
        sketch_BK, left_out, share = self.project(gradients)
        partly = f"; time of {1 - share:.0%} of the projection reckoned by proportion"
        self.note = self.plain_note + (partly if share < 1 else "")
        norm_B = sketch_BK.norm(dim=1)
        weight_B = self.weigh([MicroBatchResult(loss_B, None, sketch_BK, norm_B)])
        for name, gradient in gradients.items():
            self.parameters[name].grad = torch.tensordot(weight_B, gradient, dims=1)
        return left_out

    def per_sample_gradients(self, token_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients (B, ...) by parameter name, and the losses."""
        fixed = {name: parameter.detach() for name, parameter in self.parameters.items()}

        def loss(values: dict[str, Tensor], token_T: Tensor) -> Tensor:
            loss_1: Tensor = functional_call(self.model, values, (token_T[None],))
            return loss_1[0]

        each = vmap(grad_and_value(loss), in_dims=(None, 0), chunk_size=self.AT_ONCE)
        # Attention's fused kernels have no rule for vmap and would run sample by sample.
        with self.autocast(), sdpa_kernel(SDPBackend.MATH):
            gradients: dict[str, Tensor]
            gradients, loss_B = each(fixed, token_BT)
        return gradients, loss_B

    def project(self, gradients: dict[str, Tensor]) -> tuple[Tensor, float, float]:
        """R'g with R ~ N(0, 1/K), made anew in every step and never held.

        Returns also the seconds of what was left out once the time was up, by proportion, and the
        share that was not.
        """
        one, dim = next(iter(gradients.values())), self.config.sketch.dim
        watch = Stopwatch(self.device)
        key = key64(self.config.seed, "dense", self.done)
        draw = torch.Generator(one.device).manual_seed(key >> 1)
        sketch_BK = one.new_zeros(len(one), dim)
        total = sum(gradient[0].numel() for gradient in gradients.values())
        watch.wait()
        done, start = 0, time.perf_counter()
        flat = (gradient.flatten(1) for gradient in gradients.values())
        for part_Bf in (part for one_BF in flat for part in one_BF.split(self.STRETCH, dim=1)):
            shape = (part_Bf.shape[1], dim)
            dense_fK = torch.randn(shape, generator=draw, device=one.device, dtype=one.dtype)
            sketch_BK += part_Bf @ dense_fK
            done += part_Bf.shape[1]
            watch.wait()
            if (spent := time.perf_counter() - start) > self.SECONDS:
                break
        left_out = spent * (total - done) / done
        return sketch_BK / math.sqrt(dim), left_out, done / total


RIVALS: dict[str, type[Rival]] = {"loop": Loop, "vmap": Vmap, "opacus": Opacus}
NUM_BATCHES = 4
RIVAL_STEPS, RIVAL_SECONDS = 2, 8.0  # after which no further step is begun


def first_batches(session: Session) -> Batches:
    """A few batches of the plain run, used in turn."""
    assert session.plain.loader is not None
    drawn = [session.plain.loader.load(step, ahead=False) for step in range(NUM_BATCHES)]
    return lambda step: drawn[step % NUM_BATCHES]


def measured(
    session: Session, kind: type[Rival], batches: Batches, plain_ms: float
) -> dict[str, Any]:
    """A few steps alone on the device; the ratio is of medians, counted by the sample."""
    options, held = session.options, torch.cuda.memory_reserved(session.device)
    if session.watch.on_gpu:
        torch.cuda.reset_peak_memory_stats(session.device)
    rival = kind(options, batches, session.device)
    spent: list[float] = []
    begun = time.perf_counter()
    for turn in range(RIVAL_STEPS + 1):
        session.watch.wait()
        start = time.perf_counter()
        left_out = rival.step()
        session.watch.wait()
        spent.append(1e3 * (time.perf_counter() - start + left_out))
        if turn > 0 and time.perf_counter() - begun > RIVAL_SECONDS:
            break
    batch = options.run.train.batch_size
    ms, share = statistics.median(spent[1:]), rival.num_samples / batch
    peak = torch.cuda.max_memory_allocated(session.device) - held if session.watch.on_gpu else None
    samples = f"; {rival.num_samples} of {batch} samples, counted by the sample"
    return {
        "ms": spread([ms]) | {"steps": len(spent) - 1},  # the first one warms up
        "num_samples": rival.num_samples,
        "peak_bytes": peak,
        "note": rival.note + (samples if share < 1 else ""),
        "ratio": {"median": ms / share / plain_ms},
        **session.memory_ratio(peak),
        **session.speed(ms, share),
    }


def run(session: Session, *, hand: bool = True, whole: bool = False, rivals: bool = True) -> None:
    """Modes as `dograph bench` measures them, then the loop by hand and the rivals."""

    def measure_hand() -> None:
        options = session.options
        how = ("whole" if whole else "by blocks") if options.run.train.compile else "eager"

        def beside_plain() -> dict[str, Any]:
            found = session.beside_plain(
                "hand",
                lambda: open_hand(options, first_batches(session), session.device, whole=whole),
            )
            speed = found["ratio"]["median"]
            return found | {"note": f"compiled: {how}; plain runs at {speed:.1%} of its speed"}

        session.measure("hand", beside_plain)

    def measure_rivals() -> None:
        plain_ms, batches = session.plain_median(), first_batches(session)
        session.plain.close()
        session.plain = Arm(list, nn.Identity())  # frees the memory of the old one
        release(session.device)
        for name, kind in RIVALS.items():
            session.measure(name, partial(measured, session, kind, batches, plain_ms))

    session.run(*[measure_hand] * hand, *[measure_rivals] * rivals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="as of `dograph bench`: model.preset=...")
    parser.add_argument("--modes", default="", help="modes of the sketch to measure too, by commas")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--hand", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--hand-whole", action="store_true", help="that loop as one graph")
    parser.add_argument("--rivals", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("rivals.json"))
    given = parser.parse_intermixed_args()
    name, settings = split_settings(given.settings)
    device, out = pick_device(resolve_config(name, settings).train.device), given.out
    options = resolve_options(
        device,
        given.modes.split(",") if given.modes else [],
        settings,
        config=name,
        vocab_size=given.vocab_size,
        steps=given.steps,
    )
    session = Session(options, device, print, lambda found: write_json(out, found))
    run(session, hand=given.hand, whole=given.hand_whole, rivals=given.rivals)
    open_console().print(arm_table(session.findings))
    print(*footnotes(session.findings), sep="\n")


if __name__ == "__main__":
    main()
