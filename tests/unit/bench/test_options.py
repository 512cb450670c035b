import pytest
import torch

from dograph.bench.options import resolve_options
from dograph.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_defaults_suit_the_device():
    small, large = resolve_options(CPU, ["full"]), resolve_options(GPU, ["full"])
    assert (small.model, small.tokens, small.dtype, small.compile) == (
        "demo",
        1024,
        "float32",
        False,
    )
    assert (large.model, large.batch, large.seq_len) == ("gpt2-small", 48, 512)
    assert (large.dtype, large.compile, large.vocab_size) == ("bfloat16", True, 50257)
    assert not resolve_options(GPU, [], compile=False).compile


def test_the_paper_draws_a_projection_every_step_and_safe_keeps_it():
    paper, safe = resolve_options(CPU, []), resolve_options(CPU, [], recipe="safe")
    assert paper.config("full").sketch.refresh == "step"
    assert safe.config("full").sketch.refresh == "never"
    assert (paper.warmup_steps, safe.warmup_steps) == (5, 12)
    assert paper.config(None).mixer.name == "natural"


def test_micro_batches_choose_how_they_accumulate():
    assert resolve_options(CPU, []).accumulates is None
    assert resolve_options(CPU, [], micro_batch=8).accumulates is None  # all at once
    assert resolve_options(CPU, [], micro_batch=3).accumulates == "two_sweeps"
    assert resolve_options(CPU, [], micro_batch=4).accumulates == "two_sweeps"
    assert resolve_options(CPU, [], micro_batch=4, recipe="safe").accumulates == "lagged"


@pytest.mark.parametrize(
    ("modes", "given", "message"),
    [
        (["ful"], {}, 'did you mean "full"'),
        ([], {"model": "gpt2-samll"}, 'did you mean "gpt2-small"'),
        ([], {"recipe": "sfae"}, 'did you mean "safe"'),
        ([], {"dtype": "float16"}, 'did you mean "bfloat16"'),
        ([], {"hand_compile": "block"}, 'did you mean "blocks"'),
        (["topdown"], {"top_blocks": 5}, "has 4 blocks; give 1 to 4"),
        ([], {"micro_batch": 4, "accumulation": "lagged"}, "use --recipe safe"),
        (["head"], {"micro_batch": 4, "accumulation": "keep"}, "would hold every micro-batch"),
    ],
)
def test_mistakes_are_told_before_anything_is_built(modes, given, message):
    with pytest.raises(ConfigError, match=message):
        resolve_options(CPU, modes, **given)
