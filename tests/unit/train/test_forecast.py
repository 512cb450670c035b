"""The forecast: exact where it can be, near where it cannot."""

import time

import pytest
import torch

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.mixers.registry import build_mixer
from dograph.train import forecast as forecasts
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.checkpoint import save_model
from dograph.train.forecast import forecast, memory_problem, planned_epochs, repeat_warnings
from dograph.types import Mixture


@pytest.fixture(autouse=True)
def short(request, monkeypatch):
    if "slow" not in request.keywords:  # the time is not looked at
        monkeypatch.setattr("dograph.train.forecast.TIMED_SECONDS", 0.0)


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "c"))


def configure(corpus, *overrides):
    base = [f"data.corpus={corpus.directory}", "data.seq_len=32", "model.preset=tiny"]
    return resolve_config(None, [*base, "train.steps=30", "train.batch_size=10", *overrides])


def test_parameters_tokens_and_repeats_are_those_of_the_run(corpus):
    config = configure(corpus, "mixer.name=uniform")
    costs = forecast(config, corpus)
    assert costs.parameters == sum(p.numel() for p in open_model(config, corpus).parameters())
    assert config.tokens == 30 * 10 * 32
    sampler = open_sampler(config, corpus)
    sampler.remix(0, build_mixer("uniform", {}).plan(CorpusLab(config, corpus)), "plan")
    real = sampler.epochs(sampler.drawn(30))
    assert costs.epochs == pytest.approx(real, abs=1 / min(sampler.blocks_S))
    assert costs.weights == pytest.approx(dict.fromkeys(corpus.sources, 1 / 3))


@pytest.mark.slow
def test_the_time_is_near_that_of_real_steps(corpus):
    """Within a factor of three: the machine may be busier at one time than at the other."""
    config = configure(corpus, "mixer.name=natural", "model.preset=demo", "data.seq_len=128")
    model = open_model(config, corpus)
    expected = [forecast(config, corpus).seconds / 30]
    start = time.monotonic()
    for _ in range(10):
        model(torch.zeros(10, 128, dtype=torch.int64)).sum().backward()
    spent = (time.monotonic() - start) / 10
    expected.append(forecast(config, corpus).seconds / 30)
    assert min(expected) / 3 < spent < 3 * max(expected)


def test_repeats_beyond_the_limit_warn_by_name(corpus):
    config = configure(corpus, "mixer.name=uniform", "data.warn_epochs=2")
    sampler = open_sampler(config, corpus)
    mixer = build_mixer("uniform", {})
    sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), "plan")
    assert planned_epochs(config, sampler, mixer)["gamma"] == pytest.approx(100 / 31)
    (warning,) = repeat_warnings(config, sampler, mixer)
    assert warning.startswith("gamma would be read through 3.2 times")


def test_a_schedule_is_followed_through_all_its_stages(corpus):
    config = configure(corpus)
    stages = {0: {"alpha": 1}, 10: {"gamma": 1}, 99: {"beta": 1}}
    mixer = build_mixer("scheduled", {"stages": stages})
    sampler = open_sampler(config, corpus)
    sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), "plan")
    epochs = planned_epochs(config, sampler, mixer)
    assert epochs == pytest.approx({"alpha": 100 / 187, "beta": 0.0, "gamma": 200 / 31})
    sampler.remix(10, Mixture({"beta": 1.0}), "edited")  # in place of the stage that begins there
    edited = planned_epochs(config, sampler, mixer)
    assert edited["gamma"] == 0
    assert edited["beta"] == pytest.approx(200 / int(sampler.blocks_S[1]))


def test_a_pretrained_model_is_forecast_from_its_shape(corpus, tmp_path):
    config = configure(corpus)
    save_model(open_model(config, corpus), tmp_path / "model", None)
    by_path = configure(corpus, "model.preset=null", f"model.path={tmp_path / 'model'}")
    assert forecast(by_path, corpus).parameters == forecast(config, corpus).parameters


def test_activation_memory_is_near_what_autograd_keeps(corpus):
    """Against the bytes of all tensors that a real forward pass saves for backward."""
    config = configure(corpus, "data.seq_len=256", "model.preset=demo")
    model = open_model(config, corpus)
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_B = model(torch.randint(0, 100, (10, 256)))
    expected = forecast(config, corpus).activation_bytes
    assert loss_B.shape == (10,)
    assert 0.5 < expected / sum(kept.values()) < 2.0


@pytest.mark.parametrize(("mode", "saves"), [("full", False), ("exact", False), ("twopass", True)])
def test_checkpointing_saves_no_memory_where_gradients_wait_for_weights(corpus, mode, saves):
    sketching = ["mixer.name=dograph", f"sketch.mode={mode}", "model.preset=demo"]
    plain, saving = (
        forecast(configure(corpus, f"train.activation_checkpointing={on}", *sketching), corpus)
        for on in ("false", "true")
    )
    assert (saving.activation_bytes < plain.activation_bytes) == saves
    blind = configure(
        corpus, "train.activation_checkpointing=true", "model.preset=demo", "mixer.name=natural"
    )
    assert forecast(blind, corpus).activation_bytes < plain.activation_bytes


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["train.batch_size=100000", "data.seq_len=256"], "lower train.micro_batch_size"),
        (["train.batch_size=100000000000", "train.micro_batch_size=1"], "lower train.batch_size"),
        (["mixer.name=dograph", "sketch.dim=100000000"], "lower sketch.dim"),
        (["model.preset=llama-3.2-3b"], "choose a smaller one"),
    ],
)
def test_what_cannot_fit_is_told_with_the_figures_and_what_to_lower(
    corpus, monkeypatch, overrides, cause
):
    monkeypatch.setattr(forecasts, "machine_memory", lambda: 16 << 30)
    config = configure(corpus, "mixer.name=natural", *overrides)
    [problem] = memory_problem(config, corpus, CPU)
    assert cause in problem
    assert "cpu has 16.0 GiB" in problem


@pytest.mark.parametrize("mode", ["full", "head"])
def test_what_a_run_is_known_to_need_is_less_than_what_it_takes(corpus, monkeypatch, mode):
    """A run that fits is never refused: its weights, gradients and moments alone are counted."""
    config = configure(corpus, "mixer.name=dograph", f"sketch.mode={mode}")
    parameters = sum(p.numel() for p in open_model(config, corpus).parameters())
    least = 16 * parameters + 4 * 10 * 5120
    most = 2 * forecast(config, corpus).state_bytes + 100 * 4 * 10 * 5120
    for there, fits in ((least, False), (most, True)):
        monkeypatch.setattr(forecasts, "machine_memory", lambda there=there: there)
        assert (memory_problem(config, corpus, CPU) == []) == fits


def test_shards_and_checkpointing_count(corpus, monkeypatch):
    monkeypatch.setattr(forecasts, "machine_memory", lambda: 30 << 30)
    large = configure(corpus, "mixer.name=natural", "model.preset=llama-3.2-3b", "train.shard=true")
    assert memory_problem(large, corpus, CPU)
    assert not memory_problem(large, corpus, CPU, ranks=4)
    long = ["train.batch_size=40000", "mixer.name=natural", "model.preset=demo", "data.seq_len=256"]
    assert memory_problem(configure(corpus, *long), corpus, CPU)
    long.append("train.activation_checkpointing=true")
    assert not memory_problem(configure(corpus, *long), corpus, CPU)


def warnings_of(corpus, *settings):
    return forecast(configure(corpus, "data.warn_epochs=99", *settings), corpus).warnings


def test_too_few_samples_for_a_domain_are_warned_about(corpus):
    few = ("mixer.num_domains=3", "mixer.recipe=paper", "eval.max_samples_per_source=99")
    few += ("data.seq_len=12",)  # 16 blocks of every source
    [warning] = warnings_of(corpus, *few)
    assert "mixer.num_domains=3 with train.batch_size=10 leaves 3.3 samples" in warning
    assert warnings_of(corpus, *few, "train.batch_size=12") == []
    assert warnings_of(corpus, *few, "mixer.scope=stream") == []  # clusters ten batches
    [warning] = warnings_of(corpus, *few, "mixer.scope=period", "mixer.period_steps=1")
    assert "3.3 samples" in warning
    assert warnings_of(corpus, "mixer.name=natural", *few[2:]) == []


def test_a_short_validation_is_warned_about(corpus):
    """Validation texts of 1500, 750 and 250 tokens, in blocks of 32."""
    plain = ("mixer.name=natural", "eval.max_samples_per_source=99")
    [warning] = warnings_of(corpus, *plain)
    assert "fewer than 16 validation blocks of 32 tokens: gamma (7)" in warning
    assert warnings_of(corpus, *plain, "data.seq_len=15") == []
    [warning] = warnings_of(corpus, *plain, "eval.max_samples_per_source=9")
    assert "alpha (9), beta (9), gamma (7)" in warning
    assert "raise eval.max_samples_per_source=9" in warning
