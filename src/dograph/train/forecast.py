"""What a run would cost, before it is started: parameters, memory, tokens, repeats, time.

Parameters, tokens and repeats are exact. Memory is weights, gradients and AdamW's moments
(exact) plus activations (a count of what each layer keeps for the backward pass). Time is the
run's matmul FLOPs at EFFICIENCY times the matmul speed measured on this machine just now.
"""

import time
from dataclasses import dataclass

import torch

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer
from dograph.modes import DETACHING
from dograph.train.assembly import open_sampler, open_shape
from dograph.train.distributed import pick_device
from dograph.train.flops import run_flops
from dograph.train.lab import open_lab
from dograph.train.sharding import require_shardable

EFFICIENCY = 0.6  # of the measured matmul speed; what is not a matmul takes the rest
KEPT_PER_LAYER = 34  # bytes a layer keeps per token and unit of width in half precision
PROBE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Forecast:
    """A run's costs."""

    parameters: int
    state_bytes: int  # weights, gradients, moments
    activation_bytes: int  # of one micro-batch on one rank
    tokens: int
    weights: dict[str, float]
    epochs: dict[str, float]
    flops: float
    flops_per_second: float
    seconds: float


def forecast(config: RunConfig, corpus: Corpus) -> Forecast:
    """Costs of the run on one process of this machine."""
    model = open_shape(config, corpus)
    parameters = sum(p.numel() for p in model.parameters())
    layers, width = model.model.config.num_hidden_layers, model.model.config.hidden_size
    flops = run_flops(config, corpus)
    speed = measure_matmul(config, width)
    sampler = open_sampler(config, corpus)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    require_shardable(config, mixer)
    sampler.remix(0, mixer.plan(open_lab(config, corpus)), "plan")
    return Forecast(
        parameters=parameters,
        state_bytes=16 * parameters,
        activation_bytes=activation_bytes(
            config, layers, width, model.vocab_size, sketches="sketch" in mixer.needs
        ),
        tokens=config.tokens,
        weights=sampler.by_source(sampler.log.entries[0].weight_S),
        epochs=planned_epochs(config, sampler, mixer),
        flops=flops,
        flops_per_second=speed,
        seconds=flops / (EFFICIENCY * speed),
    )


def activation_bytes(
    config: RunConfig, layers: int, width: int, vocab_size: int, *, sketches: bool = False
) -> int:
    """What the backward pass keeps, for one micro-batch.

    Checkpointing saves none of it where weight gradients wait for the samples' weights: the layers'
    inputs are kept for them.
    """
    samples = config.train.micro_batch_size or config.train.batch_size
    tokens = samples * config.data.seq_len
    scale = 1 if config.train.half else 2
    per_layer = tokens * width * scale * KEPT_PER_LAYER
    kept = layers * tokens * width * 2 * scale + per_layer
    waiting = sketches and config.sketch.mode in DETACHING
    saving = config.train.activation_checkpointing and not waiting
    whole = kept if saving else layers * per_layer
    return whole + 3 * 4 * tokens * vocab_size  # logits, their log-softmax and its gradient


def measure_matmul(config: RunConfig, width: int) -> float:
    """FLOP/s of this machine on a matmul like the model's own."""
    device = pick_device(config.train.device)
    dtype = torch.bfloat16 if config.train.half else torch.float32
    rows = min(config.tokens_per_step, 8192)
    a, b = (
        torch.randn(shape, device=device, dtype=dtype)
        for shape in [(rows, width), (width, 4 * width)]
    )

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    a @ b
    wait()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < PROBE_SECONDS:
        for _ in range(4):
            a @ b
        done += 4
        wait()
    return done * 2.0 * rows * width * 4 * width / (time.perf_counter() - start)


def planned_epochs(config: RunConfig, sampler: Sampler, mixer: Mixer) -> dict[str, float]:
    """How often each source will have been read through, as far as the mixer's plans are known."""
    entry = sampler.log.entries[-1]
    later = {step: m for step, m in mixer.schedule().items() if entry.step < step}
    weights = [(entry.step, entry.weight_S)]
    weights += [(step, sampler.weights_of(later[step])) for step in sorted(later)]
    ends = [step for step, _ in weights[1:]] + [config.train.steps]
    planned_S = entry.drawn_S.astype(float)
    for (step, weight_S), end in zip(weights, ends, strict=True):
        steps = max(min(end, config.train.steps) - step, 0)
        planned_S = planned_S + steps * config.train.batch_size * weight_S
    return sampler.epochs_of(planned_S)


def repeat_warnings(config: RunConfig, sampler: Sampler, mixer: Mixer) -> list[str]:
    """One line for every source that would be read through too often."""
    most = config.data.warn_epochs
    return [
        f"{source} would be read through {epochs:.1f} times, more than data.warn_epochs={most:g}; "
        "train fewer steps, give it less weight, or use mixer.name=unimax"
        for source, epochs in planned_epochs(config, sampler, mixer).items()
        if epochs > most
    ]
