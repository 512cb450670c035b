import numpy as np
import pytest
import torch

from dograph.bench.arms import open_corpus, resolve_options, segments
from dograph.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def options(*settings, modes=(), device=CPU, **given):
    return resolve_options(device, modes, settings, **given)


def chosen(options, *names):
    values = options.to_json()
    return tuple(values[name] for name in names)


def test_defaults_suit_the_device():
    small, large = options(modes=["full"]), options(modes=["full"], device=GPU)
    assert chosen(small, "model", "dtype", "compile") == ("demo", "float32", False)
    sizes = ("seq_len", "batch", "vocab_size", "dim", "steps")
    assert chosen(small, *sizes) == (128, 8, 4096, 5120, None)
    assert chosen(large, "model", "batch", "seq_len") == ("gpt2-small", 48, 512)
    assert chosen(large, "dtype", "compile", "vocab_size") == ("bfloat16", True, 50257)
    assert chosen(options("train.compile=false", device=GPU), "compile") == (False,)
    named = ("recipe", "top_blocks", "micro_batch", "seed")
    assert chosen(large, *named) == ("paper", 4, None, 0)
    assert large.config("full").optim.lr == large.config(None).optim.lr == 1e-6
    assert large.config("full").train.half
    assert (large.config("full").sketch.top_blocks, large.config(None).data.seq_len) == (4, 512)


def test_a_configuration_replaces_the_defaults():
    found = options("train.dtype=float32", device=GPU, config="paper-gpt2-small")
    how = ("batch", "micro_batch", "dtype", "compile")
    assert chosen(found, *how) == (48, 12, "float32", False)
    assert chosen(found, "seed", "corpus", "vocab_size") == (42, None, 50257)
    assert options(config="planted").recipe == "safe"


def test_the_file_has_every_choice():
    assert list(options("seed=3", modes=["full"]).to_json()) == [
        *("model", "batch", "seq_len", "vocab_size", "dtype", "compile", "micro_batch"),
        *("accumulates", "modes", "top_blocks", "recipe", "dim", "steps", "corpus"),
        "seed",
    ]


def test_a_prepared_corpus_gives_the_batches(tmp_path):
    corpus = open_corpus(options("model.preset=tiny", vocab_size=70), tmp_path)
    found = options(f"data.corpus={corpus.directory}")
    assert chosen(found, "corpus", "vocab_size") == (str(corpus.directory), 70)
    asked = options(f"data.corpus={corpus.directory}", vocab_size=80)
    assert chosen(asked, "corpus", "vocab_size") == (None, 80)
    assert open_corpus(found, tmp_path).digest == corpus.digest


def test_random_tokens_have_several_sources_and_stay_in_the_vocabulary(tmp_path):
    corpus = open_corpus(options("model.preset=tiny", vocab_size=70), tmp_path)
    assert len(corpus.sources) == len(corpus.train) == 3
    counts = [np.bincount(stratum.token_N, minlength=70) for stratum in corpus.train]
    assert all(len(count) == 70 and count[0] > 5 * count[40] > 0 for count in counts)
    assert not np.array_equal(*counts[:2])


def test_slow_steps_are_timed_less_often_and_segments_are_whole():
    run = options().run
    assert (segments(run, 0.4), segments(run, 0.6)) == ((200, 20), (60, 20))
    assert segments(run, 0.4, 31) == (40, 20)
    assert segments(options("log.every=25").run, 0.6, 31) == (50, 50)
    for steps, timed in ((30, 40), (90, 100), (999, 200)):  # at least two segments
        train = run.train.model_copy(update={"steps": steps})
        assert segments(run.model_copy(update={"train": train}), 0.4) == (timed, 20)


def test_a_projection_is_drawn_as_often_as_in_a_run():
    """Every step for domains of a batch, once for domains that persist."""
    paper, recommended, safe = (
        options(f"mixer.recipe={recipe}") for recipe in ("paper", "recommended", "safe")
    )
    assert paper.config("full").sketch.refresh == "step"
    assert recommended.config("full").sketch.refresh == "step"
    assert safe.config("full").sketch.refresh == "never"
    assert options("sketch.refresh=7").config("full").sketch.refresh == 7
    assert options().config(None).mixer.name == "natural"


def test_micro_batches_choose_how_they_accumulate():
    assert options().accumulates is None
    assert options("train.micro_batch_size=8").accumulates is None  # all at once
    assert options("train.micro_batch_size=3").accumulates == "two_sweeps"
    assert options("train.micro_batch_size=4").accumulates == "two_sweeps"
    assert options("train.micro_batch_size=4", "mixer.recipe=safe").accumulates == "two_sweeps"
    lagged = ("mixer.recipe=safe", "sketch.accumulation=lagged")
    assert options("train.micro_batch_size=4", *lagged).accumulates == "lagged"


PARTS = "train.micro_batch_size=4"


@pytest.mark.parametrize(
    ("modes", "settings", "message"),
    [
        (["ful"], [], 'did you mean "full"'),
        ([], ["model.preset=gpt2-samll"], 'did you mean "gpt2-small"'),
        ([], ["mixer.recipe=sfae"], 'did you mean "safe"'),
        ([], ["mixer.name=doge"], "set mixer.name=dograph"),
        ([], ["train.dtype=float16"], "train.dtype='float16'; .*allowed: bfloat16, float32"),
        (["topdown"], ["sketch.top_blocks=5"], "has 4 blocks; give 1 to 4"),
        (["full"], [PARTS, "sketch.accumulation=lagged"], "use sketch.accumulation=two_sweeps"),
        (["head"], [PARTS, "sketch.accumulation=keep"], "would hold every micro-batch"),
    ],
)
def test_mistakes_are_told_before_anything_is_built(modes, settings, message):
    with pytest.raises(ConfigError, match=message):
        options(*settings, modes=modes)
