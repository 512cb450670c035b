"""DoGraph in the trainer, given what it should not be given.

Shapes: B samples, T tokens, K sketch.
"""

import math
from dataclasses import replace

import pytest
import torch
from transformers import MambaConfig

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import ConfigError, NonFiniteError
from dograph.records import read_metrics
from dograph.sketch.rules import MatrixRule
from dograph.train.trainer import start_run
from tiny_steps import (
    ALONE,
    PAPER,
    PERIOD,
    SETTINGS,
    STREAM,
    assert_same_gradients,
    early_domains,
    open_steps,
)

SCOPES = {"paper": PAPER, "stream": STREAM, "period": PERIOD}
TRAINER = (
    "train.steps=6",
    "eval.every=0",
    "eval.max_samples_per_source=1",
    "probe.rows=0",
    "log.every=3",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(autouse=True)
def domains_soon():
    with early_domains():
        yield


def open_run(corpus, folder, *options):
    place = (f"data.corpus={corpus}", f"run={folder / 'run'}")
    return start_run(resolve_config(None, [*place, *SETTINGS, *TRAINER, *options]), ALONE)


def refusal(corpus, folder, *options):
    """Why a run does not start; nothing of it is left behind."""
    with pytest.raises(ConfigError) as caught:
        open_run(corpus, folder, *options)
    assert not (folder / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("samples", "domains"), [(1, 3), (4, 11)])
def test_few_samples_for_many_domains(corpus, tmp_path, scope, samples, domains):
    options = (f"train.batch_size={samples}", f"mixer.num_domains={domains}", "optim.lr=1e-3")
    trainer = open_run(corpus, tmp_path, *SCOPES[scope], *options)
    records, advance = [], trainer.advance

    def watched(loader):
        records.append(advance(loader))
        return records[-1]

    trainer.advance = watched
    trainer.train()
    for record in records:
        assert float(record.weight_B.sum()) == pytest.approx(1, abs=1e-6)
        assert float(record.weight_B.min()) >= 0
        if samples == 1:
            assert record.weight_B.tolist() == [1]
    rows = list(read_metrics(trainer.run.metrics_file))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 6]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert not any(row.get("weights/fallback") for row in rows[:6])


@pytest.mark.parametrize("scope", SCOPES)
def test_identical_samples(corpus, scope):
    """Whatever they count, the step is that of one of them."""
    steps = open_steps(corpus, *SCOPES[scope])
    load = steps.loader.load

    def same(step):
        batch = load(step)
        return replace(batch, token_BT=batch.token_BT[:1].expand(7, -1).contiguous())

    steps.loader.load = same
    for _ in range(5):
        taken = steps.take()
        assert float(taken.weight_B.sum()) == pytest.approx(1, abs=1e-6)
        assert torch.isfinite(taken.weight_B).all()
        if scope == "paper":
            assert torch.allclose(taken.weight_B, torch.full((7,), 1 / 7))
        steps.model.zero_grad()
        steps.model(same(steps.done - 1).token_BT).mean().backward()
        plain = {name: p.grad for name, p in steps.model.named_parameters()}
        assert_same_gradients(taken.gradients, plain)
        steps.model.zero_grad()


def test_every_sample_of_a_domain_with_weight_counts(corpus):
    """Weights by sampling: shares come from counts, which begin empty."""
    steps = open_steps(corpus, *STREAM, "mixer.apply_weights_to=sampling")
    assert all(bool((steps.take().weight_B > 0).all()) for _ in range(6))


@pytest.mark.parametrize(
    ("scope", "mode"),
    [("stream", "full"), *(("paper", mode) for mode in ("twopass", "topdown", "exact", "head"))],
)
def test_nan_in_an_embedding_row(corpus, tmp_path, scope, mode):
    """Embeddings of LLaMA are not tied: only samples with that token are spoilt."""
    options = (*SCOPES[scope], f"sketch.mode={mode}", "model.preset=llama-tiny", "optim.lr=1e-3")
    trainer = open_run(corpus, tmp_path, *options)
    loader = trainer.open_loader()
    for _ in range(3):
        record = trainer.advance(loader)
        assert float(record.report["weights/fallback"]) == 0
    batch = loader.load(3)
    counts = torch.bincount(batch.token_BT[:, :-1].flatten(), minlength=100)
    rare = min((token for token in range(100) if counts[token]), key=lambda token: counts[token])
    spoilt_B = (batch.token_BT[:, :-1] == rare).any(dim=1)
    assert 0 < spoilt_B.sum() < 7
    with torch.no_grad():
        trainer.state.model.model.get_input_embeddings().weight[rare] = torch.nan
    before = {n: p.clone() for n, p in trainer.state.model.named_parameters()}

    record = trainer.advance(loader)
    assert torch.equal(torch.isfinite(record.loss_B), ~spoilt_B)
    assert torch.equal(record.weight_B, torch.full((7,), 1 / 7))
    assert float(record.report["weights/fallback"]) == 1
    assert bool(record.halted)
    with pytest.raises(NonFiniteError, match=r"step 4: .*losses are not finite"):
        trainer.train()
    for name, parameter in trainer.state.model.named_parameters():
        assert torch.equal(parameter.nan_to_num(), before[name].nan_to_num()), name
    assert [row["step"] for row in list(read_metrics(trainer.run.metrics_file))] == [1, 2, 3]


def test_domains_that_last_need_projections_that_last(corpus, tmp_path):
    for scope in ("stream", "period"):
        said = refusal(corpus, tmp_path, *SCOPES[scope], "sketch.refresh=step")
        assert f"sketch.refresh=step with mixer.scope={scope}" in said
        assert "set sketch.refresh to never" in said
    said = refusal(corpus, tmp_path, *PERIOD, "mixer.period_steps=100", "sketch.refresh=100")
    assert "sketch.refresh=100" in said
    assert "mixer.scope=period" in said


def test_layers_that_cannot_be_sketched_are_named_and_trained(corpus, tmp_path, caplog):
    shape = MambaConfig(vocab_size=128, hidden_size=16, num_hidden_layers=1, state_size=4)
    shape.save_pretrained(tmp_path / "mamba")
    strange = (f"model.path={tmp_path / 'mamba'}", "model.preset=null", "model.pretrained=false")
    trainer = open_run(corpus, tmp_path, *PAPER, *strange, "optim.lr=1e-3", "optim.warmup_steps=0")
    before = {name: p.clone() for name, p in trainer.state.model.named_parameters()}
    trainer.advance(trainer.open_loader())
    assert "backbone.layers.0.mixer.A_log" in caplog.text
    assert "backbone.layers.0.mixer.conv1d.weight" in caplog.text
    for name, parameter in trainer.state.model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("mixer.num_domains=0", "mixer.num_domains=0: give a whole number of at least 1"),
        ("mixer.num_domains=2.5", "mixer.num_domains=2.5: give a whole number"),
        ("sketch.dim=0", "sketch.dim=0: give a whole number of at least 1"),
        ("sketch.dim=7", "dim=7 splits into 7 x 1 columns"),
        ("sketch.refresh=0", "refresh=0: give never, step, or a number of steps > 0"),
        ("sketch.mode=ful", "sketch.mode='ful'; did you mean \"full\"?"),
    ],
)
def test_settings_out_of_range(corpus, tmp_path, option, message):
    assert message in refusal(corpus, tmp_path, *STREAM, option)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_halves_are_kept_in_the_precision_of_the_forward(corpus, dtype):
    """Half the memory of what `full` holds, and matrix products that a GPU is fast at."""
    steps = open_steps(corpus, *PAPER, f"train.dtype={dtype}")
    steps.take()
    rules = [rule for rule in steps.step.sketcher.rules if isinstance(rule, MatrixRule)]
    slots = {slot.dtype for rule in rules for slot in rule.halves_of_calls[0]}
    assert slots == {getattr(torch, dtype)}
