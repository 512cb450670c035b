"""The cost of a run before it starts: parameters, memory, tokens, epochs, FLOPs, time.

Parameters, tokens and epochs are exact. Memory is weights, gradients and AdamW's moments (exact)
plus activations (an estimate of what each layer saves for the backward). Time is the run's matmul
FLOPs over the speed at which one layer of the model trains on this machine just now.

FLOPs are counted from the shapes of the layers: a product of (N, in) and (in, out) is 2 N in out. A
backward has two products for each one of the forward, so a step is three forwards. Attention is
counted in full, causal or not. All else (norms, softmax, AdamW) is left out, as usual for MFU.
"""

import math
import time
from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from dograph.choices import CUTTING, DETACHING, EXPLICIT, TWO_SIDED
from dograph.config import RunConfig, SketchConfig
from dograph.data.corpus import Corpus, blocks_by_source
from dograph.data.sampler import Sampler
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer
from dograph.models.loss import PerSampleLoss
from dograph.processes import machine_memory
from dograph.sketch.cover import blocks_of, cover, output_layer
from dograph.sketch.projection import Projection
from dograph.sketch.rules import EmbeddingRule, MatrixRule, Rule
from dograph.train.assembly import CorpusLab, mixture_warnings, open_sampler, open_shape
from dograph.train.distributed import pick_device
from dograph.train.step import strategy_of

WIDE = 4  # bytes of a float32: sketches, embeddings and the residual stream
KEPT_PER_LAYER = 34  # bytes saved for the backward per layer, token and unit of width, in bfloat16
TIMED_TOKENS, TIMED_SECONDS = 512, 1.0  # of a measurement of speed; GPUs take 16 times as many
SKETCH = frozenset({"sketch"})  # what a mixer with sketches needs before it weighs
LEAST_BLOCKS = 16  # of a validation source, without a warning


class Flops(NamedTuple):
    """FLOPs of one forward over a batch."""

    matrices: float
    attention: float

    @property
    def forward(self) -> float:
        return self.matrices + self.attention

    @property
    def step(self) -> float:
        return 3 * self.forward


class Work(NamedTuple):
    """A piece of work that a plain step does not have."""

    what: str
    bytes: float = 0.0
    flops: float = 0.0


def count_flops(
    model: PerSampleLoss, num_samples: int, num_tokens: int, part: nn.Module | None = None
) -> Flops:
    """FLOPs of a forward over this many samples and tokens; with `part`, of its matrices alone.

    Every matrix but an embedding's is assumed to multiply every token, so a mixture of experts is
    counted too high.
    """
    rows, shape = num_samples * num_tokens, model.model.config
    layers = [m for m in (part or model).modules() if not isinstance(m, nn.Embedding)]
    own = [parameter for module in layers for parameter in module.parameters(recurse=False)]
    weights = sum(parameter.numel() for parameter in own if parameter.dim() >= 2)
    # Scores and their product with the values: two products per layer, of T x T per head.
    attention = 4.0 * rows * num_tokens * shape.hidden_size * shape.num_hidden_layers
    return Flops(2.0 * rows * weights, attention)


def extra_work(
    model: PerSampleLoss, config: RunConfig, num_samples: int, needs: Set[str] = SKETCH
) -> list[Work]:
    """The work of `sketch.mode` beyond a plain step on the same batch of so many samples.

    Two sweeps are an extra forward for the sketches, then a plain step.
    """
    sketch, rows = config.sketch, num_samples * config.data.seq_len
    mode, size = sketch.mode, 2 if config.train.half else WIDE
    two_sweeps = strategy_of(config, needs, num_samples) == "two_sweeps"
    flops, shape = count_flops(model, num_samples, config.data.seq_len), model.model.config
    head = output_layer(model, None) if mode == "head" else None
    rules, blocks = cover(model, tuple(sketch.exclude), only=head), shape.num_hidden_layers
    if mode in CUTTING:
        rules, blocks = _above_cut(rules, model, sketch)
    # A plain step sums vectors over tokens as well, but not per sample.
    numbers = sum(sum(rule.vector_sizes().values()) for rule in rules)
    vectors = Work("vectors", 2.0 * WIDE * num_samples * numbers)
    forward = [Work("forward again", 0, flops.forward)] if two_sweeps else []
    if mode in EXPLICIT:
        work = _gradients(rules, sketch, num_samples, size, weighted=not two_sweeps)
        work.append(vectors)
        if mode == "reference":
            # Each backward goes through the graph of all samples that were computed at once.
            again = ((config.train.micro_batch_size or num_samples) - 1) * 2 * flops.forward
            work.append(Work("a backward for every other sample", 0, again))
        backward = [Work("backward again", 0, 2 * flops.forward)] if two_sweeps else []
        return [*work, *forward, *backward]
    work, scaling = _projections(rules, sketch, num_samples, rows, size)
    work += [vectors, *forward]
    if two_sweeps or mode == "twopass":  # one more backward, to the activations alone
        back = flops.matrices + 2 * flops.attention
        if mode in CUTTING:  # the gradients with respect to the inputs of the layers above it
            inner = [rule for rule in rules if isinstance(rule, MatrixRule)]
            products = sum(2.0 * rows * rule.num_inputs * rule.num_outputs for rule in inner)
            back = products + 2 * flops.attention * blocks / shape.num_hidden_layers
        return [*work, Work("backward to the activations", 0, back)]
    # At a cut the residual's gradient is scaled once.
    if mode in CUTTING:
        scaling.append(Work("residual scaled", 2.0 * WIDE * rows * shape.hidden_size))
    return work + scaling


def _above_cut(rules: list[Rule], model: nn.Module, sketch: SketchConfig) -> tuple[list[Rule], int]:
    """The rules of the layers above the cut, and the number of blocks above it.

    The layers are the output layer and, in mode topdown, the top blocks and the last norm.
    """
    (stack, blocks), topdown = blocks_of(model), sketch.mode == "topdown"
    lowest = max(len(blocks) - sketch.top_blocks, 0) if topdown else len(blocks)
    above = []
    for rule in rules:
        if rule.path.startswith(f"{stack}."):
            block = int(rule.path.removeprefix(f"{stack}.").partition(".")[0])
            above += [rule] if block >= lowest else []
        elif isinstance(rule, MatrixRule) or (topdown and rule.matrix is None):
            above.append(rule)
    return above, len(blocks) - lowest


def _projections(
    rules: list[Rule], sketch: SketchConfig, num_samples: int, rows: int, size: int
) -> tuple[list[Work], list[Work]]:
    """The work of sketching with taps, and of weighting the gradients.

    For every layer the input a and the output gradient b are read once more and projected, and
    the sketch of every sample is written. The weights scale the smaller of a and b in place.
    """
    work, scaling = [], []
    for rule in rules:
        if rule.matrix is None:
            continue
        q, p = Projection(dim=sketch.dim).sides(wide=rule.wide)
        if isinstance(rule, EmbeddingRule):
            width = rule.module.embedding_dim
            # A token's row of the projection replaces the product with a.
            read, products = rows * (WIDE * width + size * q), 2.0 * rows * width * p
            scaling.append(Work("scaling", 2.0 * WIDE * rows * width))
        else:
            assert isinstance(rule, MatrixRule)
            inputs, outputs = rule.num_inputs, rule.num_outputs
            on_rows, on_columns = rule.module.weight.shape
            # The loss hashes b as it makes it: the hash is read, and there is no product.
            hashes = sketch.projection == "hashed" and rule.wide and not rule.inputs_on_rows
            read = size * rows * (inputs + (q if hashes else outputs))
            products = 2.0 * rows * (on_columns * p + (0 if hashes else on_rows * q))
            scaling.append(Work("scaling", 2.0 * size * rows * min(inputs, outputs)))
        written, summed = WIDE * num_samples * q * p, 2.0 * rows * q * p
        work.append(Work("projection", read + written, products + summed))
    return work, scaling


def _gradients(
    rules: list[Rule], sketch: SketchConfig, num_samples: int, size: int, *, weighted: bool
) -> list[Work]:
    """Full gradients of all samples: written once, read for the sketch and the weighted sum."""
    work = []
    looked_up = {rule.names["weight"] for rule in rules if isinstance(rule, EmbeddingRule)}
    # A tied weight has one gradient.
    by_name = {rule.names["weight"]: rule for rule in rules if rule.matrix is not None}
    for name, rule in by_name.items():
        on_rows, on_columns = rule.module.weight.shape
        q, p = Projection(dim=sketch.dim).sides(wide=rule.wide)
        numbers = float(num_samples * on_rows * on_columns)
        moved = (WIDE if name in looked_up else size) * numbers
        sketched = 2 * numbers * q + 2.0 * num_samples * on_columns * q * p  # (Q'G) P
        if sketch.projection not in TWO_SIDED:
            sketched = 2 * numbers * sketch.dim if sketch.projection == "gaussian" else 0.0
        work += [Work("gradients written", moved), Work("gradients sketched", moved, sketched)]
        work += [Work("gradients weighted", moved, 2 * numbers)] if weighted else []
    return work


def run_flops(config: RunConfig, corpus: Corpus) -> float:
    """FLOPs of the run: those of one step times train.steps."""
    return config.train.steps * step_flops(config, corpus)


def step_flops(config: RunConfig, corpus: Corpus) -> float:
    """FLOPs of one of train.steps; if the batch size changes, the mean over the run."""
    model, phases = open_shape(config, corpus), config.batches.phases
    number = config.train.steps
    return sum(flops_of_batch(config, model, own.size) * (own.steps / number) for own in phases)


def flops_of_batch(config: RunConfig, model: PerSampleLoss, size: int) -> float:
    """FLOPs of one step over a world batch of `size` samples, to compare the cost of methods.

    every step           a forward and a backward: 3 forwards
    needs loss           no more while the graph is kept; a second forward if the batch is larger
                         than train.micro_batch_size, because weights need all losses first
    needs sketch         `extra_work`: the projections, and what two sweeps or twopass repeat
    needs reference_loss a forward of the reference, assumed to have the model's size
    activation_checkpointing  the blocks' forward once more in every backward through them

    Not counted: validation, probes, AdamW and the mixer itself (K-means of a batch of sketches is
    some millionths of a step). One process is assumed: with several, a rank may hold its share of a
    batch that one process has to sweep twice.
    """
    train, batch = config.train, (size, config.data.seq_len)
    needs = build_mixer(config.mixer.name, config.mixer.options).needs_before_weights
    plain, twice = count_flops(model, *batch), strategy_of(config, needs, size) == "two_sweeps"
    total, backwards = plain.step, 1
    if "sketch" in needs or train.on_spike is not None:
        total += sum(piece.flops for piece in extra_work(model, config, size, needs))
        backwards += twice or config.sketch.mode == "twopass"
    elif twice:
        total += plain.forward
    if "reference_loss" in needs:
        total += plain.forward
    if train.activation_checkpointing:
        total += backwards * count_flops(model, *batch, part=blocks_of(model)[1]).forward
    return total


@dataclass(frozen=True, slots=True)
class Forecast:
    """The costs of a run."""

    parameters: int
    state_bytes: int  # weights, gradients, moments
    activation_bytes: int  # of one micro-batch on one rank
    weights: dict[str, float]
    epochs: dict[str, float]
    flops: float
    seconds: float
    warnings: list[str]


def forecast(config: RunConfig, corpus: Corpus) -> Forecast:
    """The costs of the run on one process of this machine.

    Activation checkpointing saves no memory in modes that compute weight gradients after the
    weights are known, because those hold the inputs of all layers.
    """
    model, train = open_shape(config, corpus), config.train
    parameters = sum(p.numel() for p in model.parameters())
    layers, width = model.model.config.num_hidden_layers, model.model.config.hidden_size
    flops = run_flops(config, corpus)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    sampler = open_sampler(config, corpus)
    sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), "plan")
    tokens = (train.micro_batch_size or config.batches.largest) * config.data.seq_len
    per_unit = tokens * width * (1 if train.half else 2)
    kept = layers * per_unit * KEPT_PER_LAYER
    sketches = "sketch" in mixer.needs or train.on_spike is not None
    waiting = sketches and config.sketch.mode in DETACHING
    if train.activation_checkpointing and not waiting:
        kept = layers * per_unit * 2 + per_unit * KEPT_PER_LAYER
    return Forecast(
        parameters=parameters,
        state_bytes=16 * parameters,
        # with the logits, their log-softmax and its gradient
        activation_bytes=kept + 3 * 4 * tokens * model.vocab_size,
        weights=sampler.by_source(sampler.log.entries[0].weight_S),
        epochs=planned_epochs(config, sampler, mixer),
        flops=flops,
        seconds=flops / measure_speed(config, corpus),
        warnings=memory_problem(config, corpus, pick_device(train.device))
        + start_warnings(config, corpus, sampler, mixer),
    )


def memory_problem(
    config: RunConfig, corpus: Corpus, device: torch.device, ranks: int = 1
) -> list[str]:
    """Why a run cannot fit into the memory of a rank's device; empty if it may fit.

    Counted is only what every run of these settings holds at the same time: of the activations
    eight of the model's width in each layer, or one with checkpointing (there are about 17).
    """
    try:
        model, train, length = open_shape(config, corpus), config.train, config.data.seq_len
    except RuntimeError:  # a model of one's own that cannot be built without memory
        return []
    facts, needs = model.model.config, build_mixer(config.mixer.name, config.mixer.options).needs
    batch, sketches = config.batches.largest, "sketch" in needs or train.on_spike is not None
    some = min(train.micro_batch_size or batch, -(-batch // ranks))  # samples at once
    kept = 1 if train.activation_checkpointing else 8
    kept *= getattr(facts, "num_hidden_layers", 0) * getattr(facts, "hidden_size", 0)
    logits = 0 if sketches and config.sketch.mode == "head" else WIDE * model.vocab_size
    state = 16 * sum(p.numel() for p in model.parameters()) // (ranks if train.shard else 1)
    activations = some * length * (kept * (2 if train.half else WIDE) + logits)
    # of all layers summed, and of the output layer, which has four times as many numbers
    sketch = WIDE * config.sketch.dim * (batch + 4 * some) if sketches else 0
    parts = {
        "the model: choose a smaller one": state,
        "samples at once: lower train.micro_batch_size or data.seq_len": activations,
        "the batch: lower train.batch_size": 24 * batch + 8 * batch * length // ranks,
        "the sketches: lower sketch.dim or train.batch_size": sketch,
    }
    there = machine_memory()
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    what = max(parts, key=lambda name: parts[name])
    needed, most, have = (n / 2**30 for n in (sum(parts.values()), parts[what], there))
    text = f"this run needs at least {needed:,.1f} GiB of memory, {device} has {have:.1f} GiB. "
    return [f"{text}Most of it, {most:,.1f} GiB, is for {what}"] if needed > have else []


def measure_speed(config: RunConfig, corpus: Corpus) -> float:
    """FLOP/s of forwards and backwards of the run's model with one layer, on a few samples.

    Not of a matmul alone: attention, norms, the loss and a busy machine are slower than that, and
    `train.compile` is faster.
    """
    device, length = pick_device(config.train.device), config.data.seq_len
    model = open_shape(config, corpus)
    del blocks_of(model)[1][1:]
    model.model.config.num_hidden_layers = 1
    model.to_empty(device=device)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            nn.init.normal_(tensor.data, std=0.02)
    at_once = config.train.micro_batch_size or config.batches.largest
    tokens = TIMED_TOKENS * (16 if device.type == "cuda" else 1)
    num = max(min(at_once, tokens // length), 1)
    token_BT = torch.zeros(num, length, dtype=torch.int64, device=device)

    def train_once() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.train.half):
            loss_B = model(token_BT)
        loss_B.sum().backward()
        loss_B.sum().item()  # waits for the device

    train_once()
    start, times = time.monotonic(), 0
    while not times or time.monotonic() - start < TIMED_SECONDS:
        train_once()
        times += 1
    return times * count_flops(model, num, length).step / (time.monotonic() - start)


def planned_epochs(config: RunConfig, sampler: Sampler, mixer: Mixer) -> dict[str, float]:
    """Epochs of each source at the end of the run, by the mixer's known schedule."""
    entry, batches = sampler.log.entries[-1], config.batches
    stages = [(batches.step_at(step), mix) for step, mix in sorted(mixer.schedule().items())]
    weights = {entry.step: entry.weight_S}
    weights |= {step: sampler.weights_of(mix) for step, mix in stages if entry.step < step}
    ends, planned_S = [*list(weights)[1:], batches.steps], entry.drawn_S.astype(float)
    for (step, weight_S), end in zip(weights.items(), ends, strict=True):
        drawn = batches.drawn(min(end, batches.steps)) - batches.drawn(step)
        planned_S = planned_S + max(drawn, 0) * weight_S
    return sampler.epochs(planned_S)


def repeat_warnings(config: RunConfig, sampler: Sampler, mixer: Mixer) -> list[str]:
    """One line for every source whose epochs would exceed data.warn_epochs."""
    most = config.data.warn_epochs
    return [
        f"{source} would be read through {epochs:.1f} times, more than data.warn_epochs={most:g}; "
        "train fewer steps, give it less weight, or use mixer.name=unimax"
        for source, epochs in planned_epochs(config, sampler, mixer).items()
        if epochs > most
    ]


def start_warnings(config: RunConfig, corpus: Corpus, sampler: Sampler, mixer: Mixer) -> list[str]:
    """What makes the results of a run doubtful, as far as it is known before; one line each."""
    length, most = config.data.seq_len, config.eval.max_samples_per_source
    blocks = blocks_by_source(corpus, "validation", length) if corpus.validation else {}
    few = [f"{s} ({min(n, most)})" for s, n in blocks.items() if min(n, most) < LEAST_BLOCKS]
    noisy = (
        f"fewer than {LEAST_BLOCKS} validation blocks of {length} tokens: {', '.join(few)}. These "
        "losses are noisy: hold out more text, lower data.seq_len, or raise "
        f"eval.max_samples_per_source={most}"
    )
    notes = mixture_warnings(config, corpus) + mixer.cautions(config)
    sizes = sorted({own.size for own in config.batches.phases})
    micro = config.train.micro_batch_size
    if config.train.compile and any(size % (micro or sizes[-1]) for size in sizes[:-1]):
        notes.append(
            f"train.compile=true compiles the model anew for batches of {sizes} samples; with "
            f"train.micro_batch_size={math.gcd(*sizes)}, or a divisor of that, it is compiled once"
        )
    return notes + ([noisy] if few else []) + repeat_warnings(config, sampler, mixer)
