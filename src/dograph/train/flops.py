"""FLOPs of a whole run, for comparing what methods cost.

Counted, step by step (training/step_work.py has the formulas):

    every step           a forward and a backward: 3 forwards
    needs loss           nothing more while the graph is kept; a second forward where the batch is
                         larger than train.micro_batch_size, for weights need all losses first
    needs sketch         the products of the projections of sketch.mode and sketch.dim, and what
                         sketch.accumulation=two_sweeps or mode twopass runs again
    needs reference_loss a forward of the reference, which is taken to be of the model's own size
    activation_checkpointing  the blocks' forward once more in every backward through them

Not counted: validation, probes, AdamW, and what a mixer does with what it sees (K-means of a batch
of sketches is some millionths of a step). One process is assumed: many share the same products
out, but may keep a batch whole that one has to sweep twice.
"""

from dataclasses import dataclass

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.mixers.registry import build_mixer
from dograph.models.loss import PerSampleLoss
from dograph.sketch.coverage import blocks_of
from dograph.train.accumulation import way_of
from dograph.train.assembly import open_shape
from dograph.train.step_work import Setting, count_flops, extra_work


@dataclass(frozen=True, slots=True)
class _Shape:
    layers: int
    width: int


def run_flops(config: RunConfig, corpus: Corpus) -> float:
    """FLOPs of the run: what one step computes, times train.steps."""
    return config.train.steps * step_flops(config, corpus)


def step_flops(config: RunConfig, corpus: Corpus) -> float:
    """FLOPs of one step over the world batch."""
    model = open_shape(config, corpus)
    shape = _Shape(model.model.config.num_hidden_layers, model.model.config.hidden_size)
    samples, tokens = config.train.batch_size, config.data.seq_len
    needs, how = build_mixer(config.mixer.name, config.mixer.options).needs, config.sketch
    twice = way_of(config, needs) == "two_sweeps"

    plain = count_flops(model, shape, samples, tokens)
    total, backwards = plain.step, 1
    if "sketch" in needs:
        total += _sketch_flops(config, model, shape, two_sweeps=twice)
        backwards += twice or how.mode == "twopass"
    elif twice:
        total += plain.forward
    if "reference_loss" in needs:
        total += plain.forward
    if config.train.activation_checkpointing:
        total += backwards * count_flops(blocks_of(model)[1], shape, samples, tokens).forward
    return total


def _sketch_flops(
    config: RunConfig, model: PerSampleLoss, shape: _Shape, *, two_sweeps: bool
) -> float:
    how = config.sketch
    setting = Setting(
        num_samples=config.train.batch_size,
        num_tokens=config.data.seq_len,
        half=config.train.half,
        dim=how.dim,
        projection=how.projection,
        top_blocks=how.top_blocks,
        exclude=tuple(how.exclude),
        two_sweeps=two_sweeps,
        at_once=config.train.micro_batch_size,
    )
    return sum(work.flops for work in extra_work(model, shape, how.mode, setting))
