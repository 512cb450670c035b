"""FLOPs of runs against hand counts and against those that torch counts as a step runs."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from corpora import write_corpus
from dograph.config import parse_config
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.mixers.registry import build_mixer
from dograph.models.build import build_model
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.distributed import World
from dograph.train.forecast import count_flops, run_flops, step_flops
from dograph.train.step import TrainStep, build_optimizer

SAMPLES, TOKENS = 4, 24
# Of the tiny model: 2 blocks of width 64, a vocabulary of 100 padded to 128, tied.
BLOCK = 64 * (192 + 64 + 256) + 256 * 64
MATRICES = 2 * SAMPLES * TOKENS * (2 * BLOCK + 64 * 128)
ATTENTION = 2 * (4 * SAMPLES * TOKENS * TOKENS * 64)
FORWARD = MATRICES + ATTENTION


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(write_corpus(tmp_path_factory.mktemp("corpus") / "c"))


def config(corpus, **changes):
    values = {
        "data": {"corpus": str(corpus.directory), "seq_len": TOKENS},
        "model": {"preset": "tiny"},
        "mixer": {"name": "natural"},
        "sketch": {"dim": 80},
        "optim": {"warmup_steps": 0},
        "train": {"steps": 10, "batch_size": SAMPLES, "device": "cpu"},
    }
    for name, value in changes.items():
        part, key = name.split("__")
        values.setdefault(part, {})[key] = value
    return parse_config(values, "test")


class Products(TorchDispatchMode):
    """torch's own counts by operator, without FlopCounterMode's hooks on modules.

    Those stop at a backward that ends at a leaf, as that of a cut model does.
    """

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=found)
        return found


def counted_by_torch(settings, corpus):
    """What the second step of a run multiplies; the first also looks for stray parameters."""
    world = World(rank=0, size=1, device=torch.device("cpu"))
    model = open_model(settings, corpus).train()
    if settings.train.activation_checkpointing:
        model.model.gradient_checkpointing_enable({"use_reentrant": False})
    sampler, mixer = (
        open_sampler(settings, corpus),
        build_mixer(settings.mixer.name, settings.mixer.options),
    )
    sampler.remix(0, mixer.plan(CorpusLab(settings, corpus)), "plan")
    optimizer = build_optimizer(model, settings.optim)
    step = TrainStep(settings, world, model, optimizer, mixer)
    loader = Loader(corpus, sampler, rank=0, world_size=1, pin=False)
    products = Products()
    try:
        with sdpa_kernel(SDPBackend.MATH):  # so that every product of attention is seen
            step(loader.load(0, ahead=False), 0)
            batch = loader.load(1, ahead=False)
            with products:
                step(batch, 1)
    finally:
        loader.close()
    return products.flops


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_every_product_of_a_model_is_counted(preset):
    model = build_model(preset, vocab_size=500, seq_len=TOKENS, dropout=0.0, seed=0)
    token_BT = torch.arange(SAMPLES * TOKENS).view(SAMPLES, TOKENS)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(token_BT).sum().backward()
    counted = count_flops(model, SAMPLES, TOKENS)
    # Some versions of Hugging Face make LLaMA's angles by a product of positions and frequencies.
    angles = FlopCounterMode(display=False)
    if preset == "llama-tiny":
        with angles:
            model.model.model.rotary_emb(torch.ones(()), torch.arange(TOKENS).view(1, TOKENS))
    assert counter.get_total_flops() - angles.get_total_flops() == counted.step
    assert counted.step == 3 * (counted.matrices + counted.attention)


def test_a_product_by_hand():
    model = build_model("tiny", vocab_size=500, seq_len=11, dropout=0.0, seed=0)
    part = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    counted = count_flops(model, 7, 11, part)
    assert counted.matrices == 2 * 77 * (15 + 10)
    assert counted.attention == 2 * (2 * 77 * 11 * 64) * 2  # two products, two layers


def test_a_plain_run_is_three_forwards_a_step(corpus):
    assert run_flops(config(corpus), corpus) == 10 * 3 * FORWARD
    assert run_flops(config(corpus, train__steps=25), corpus) == 25 * 3 * FORWARD
    assert run_flops(config(corpus, mixer__name="uniform"), corpus) == 10 * 3 * FORWARD
    parted = config(corpus, train__micro_batch_size=2)
    assert run_flops(parted, corpus) == 10 * 3 * FORWARD


@pytest.mark.parametrize(
    ("mixer", "micro", "forwards"),
    [
        ("dynamic-loss", None, 3),  # the graph is kept
        ("dynamic-loss", 2, 4),  # all losses first, then every micro-batch again
        ("doremi-proxy", None, 4),  # the reference's forward
        ("doremi-proxy", 2, 5),
        ("group-dro", 4, 3),  # one micro-batch is the whole batch
    ],
)
def test_weighing_by_losses_by_hand(corpus, mixer, micro, forwards):
    settings = config(corpus, mixer__name=mixer, train__micro_batch_size=micro)
    assert step_flops(settings, corpus) == forwards * FORWARD


@pytest.mark.parametrize("micro", [None, 2])
def test_weighing_by_losses_multiplies_what_is_counted(corpus, micro):
    settings = config(corpus, mixer__name="dynamic-loss", train__micro_batch_size=micro)
    assert step_flops(settings, corpus) == pytest.approx(counted_by_torch(settings, corpus))


def test_the_projections_of_a_head_by_hand(corpus):
    """The (128, 64) table is sketched 10 x 8: both sides, then their products summed over T."""
    found = step_flops(config(corpus, mixer__name="dograph", sketch__mode="head"), corpus)
    rows = SAMPLES * TOKENS
    assert found == 3 * FORWARD + 2 * rows * (128 * 10 + 64 * 8) + 2 * rows * 10 * 8


def test_activation_checkpointing_runs_the_blocks_again(corpus):
    blocks = 2 * SAMPLES * TOKENS * 2 * BLOCK + ATTENTION
    found = step_flops(config(corpus, train__activation_checkpointing=True), corpus)
    assert found == 3 * FORWARD + blocks
    twice = config(
        corpus,
        train__activation_checkpointing=True,
        train__micro_batch_size=2,
        mixer__name="dograph",
    )
    whole = config(corpus, train__micro_batch_size=2, mixer__name="dograph")
    assert step_flops(twice, corpus) - step_flops(whole, corpus) == 2 * blocks


MLP = ["model.transformer.h.0.mlp"]


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize(
    ("mode", "exclude"),
    [
        ("full", []),
        ("topdown", []),
        ("head", []),
        ("twopass", []),
        ("twopass", MLP),  # what is left out is gone through all the same
        ("exact", []),
        ("reference", []),
    ],
)
def test_a_step_with_sketches_multiplies_what_is_counted(corpus, mode, exclude, micro):
    settings = config(
        corpus,
        mixer__name="dograph",
        mixer__recipe="safe",
        sketch__mode=mode,
        sketch__exclude=exclude,
        sketch__top_blocks=1,
        train__micro_batch_size=micro,
    )
    # K-means and the objective multiply as well, and are not counted: some 1e-4 of this tiny step.
    seen, counted = counted_by_torch(settings, corpus), step_flops(settings, corpus)
    assert counted == pytest.approx(seen, rel=2e-3)
    plain = step_flops(config(corpus), corpus)
    assert counted - plain == pytest.approx(seen - plain, rel=0.02)


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
@pytest.mark.parametrize("mode", ["full", "head"])
def test_a_hash_of_the_vocabulary_has_no_product(corpus, mode, kind):
    """A vocabulary larger than the number of positions, so that it is the side that is hashed."""
    llama = {"model__preset": "llama-tiny", "mixer__name": "dograph", "mixer__recipe": "safe"}
    settings = config(corpus, **llama, sketch__mode=mode, sketch__projection=kind)
    plain = config(corpus, model__preset="llama-tiny")
    extra = counted_by_torch(settings, corpus) - counted_by_torch(plain, corpus)
    assert step_flops(settings, corpus) - step_flops(plain, corpus) == pytest.approx(
        extra, rel=0.02
    )


@pytest.mark.parametrize("accumulation", ["keep", "lagged"])
def test_micro_batches_that_are_not_swept_twice(corpus, accumulation):
    """Kept graphs and last step's weights need no second sweep: as much as the batch at once."""
    settings = config(
        corpus,
        mixer__name="dograph",
        mixer__recipe="safe",
        sketch__accumulation=accumulation,
        train__micro_batch_size=2,
    )
    counted = step_flops(settings, corpus)
    assert counted == step_flops(config(corpus, mixer__name="dograph"), corpus)
    assert counted == pytest.approx(counted_by_torch(settings, corpus), rel=2e-3)


def test_a_dense_projection_is_counted(corpus):
    """A dense projection of every number of a gradient, against none."""
    model = open_model(config(corpus), corpus)
    numbers = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    dense, none = (
        step_flops(
            config(corpus, mixer__name="dograph", sketch__mode="exact", sketch__projection=kind),
            corpus,
        )
        for kind in ("gaussian", "none")
    )
    assert dense - none == 2 * SAMPLES * numbers * 80
