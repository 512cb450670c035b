"""Every mode leaves the gradient of sum_i weight_i loss_i in `.grad`, whatever the weights.

Shapes: B samples, T tokens, K sketch, M domains.
"""

from collections import Counter
from contextlib import ExitStack

import pytest
import torch

from dograph.sketch import gradients, rules
from dograph.sketch.gradients import add_gradient, add_product, add_rows, scaled_plainly
from dograph.sketch.sketcher import Sketcher

MODES = ("full", "twopass", "topdown", "head", "exact", "reference")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "plain"])
def test_as_autograd(tiny, token_BT, weight_B, name, mode):
    model = tiny.build[name]()
    expected = tiny.autograd(model, token_BT, weight_B)
    _, got = tiny.run(model, token_BT, weight_B, mode=mode, top_blocks=1)
    assert set(got) == {parameter for parameter, _ in model.named_parameters()}
    assert tiny.gradient_error(got, expected) < 1e-10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_as_autograd_in_single_precision(tiny, token_BT, weight_B, name, mode):
    """With Hugging Face's own norms, which are of this precision."""
    options = {"norms": "hugging face"} if name == "llama" else {}
    model = tiny.build[name](dtype=torch.float32, **options)
    weight_B = weight_B.float()
    expected = tiny.autograd(model, token_BT, weight_B)
    _, got = tiny.run(model, token_BT, weight_B, mode=mode, top_blocks=1)
    assert tiny.gradient_error(got, expected) < 1e-5


def noted_writes(monkeypatch, model):
    """Names of the gradients that are written, as they are."""
    written = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def noted(write):
        def call(parameter, *args):
            written.append(names[id(parameter)])
            write(parameter, *args)

        return call

    monkeypatch.setattr(gradients, "add_gradient", noted(add_gradient))
    monkeypatch.setattr(rules, "add_rows", noted(add_rows))
    return written


@pytest.mark.parametrize(("name", "tied"), [("gpt2", {"transformer.wte.weight"}), ("llama", set())])
def test_full_writes_each_gradient_once(tiny, token_BT, weight_B, monkeypatch, name, tied):
    """A tied weight is written twice: once for each of its uses."""
    model = tiny.build[name]()
    writes = noted_writes(monkeypatch, model)
    tiny.run(model, token_BT, weight_B, mode="full", check="never")
    assert Counter(writes) == {n: 2 if n in tied else 1 for n, _ in model.named_parameters()}


def test_topdown_writes_nothing_below_the_cut(tiny, token_BT, weight_B, monkeypatch):
    model = tiny.gpt2(layers=3)
    written = noted_writes(monkeypatch, model)
    tiny.run(model, token_BT, weight_B, mode="topdown", top_blocks=1, check="never")
    assert len(written) == len(set(written))
    assert {n for n in written if ".h." not in n} == {
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
        "transformer.wte.weight",
    }
    assert {n.split(".")[2] for n in written if ".h." in n} == {"2"}


@pytest.mark.parametrize("mode", MODES)
def test_equal_weights_are_the_plain_step(tiny, token_BT, mode):
    model = tiny.gpt2()
    tiny.nll(model, token_BT).mean().backward()
    expected = tiny.gradients(model)
    uniform_B = torch.full((5,), 1 / 5, dtype=torch.float64)
    _, got = tiny.run(model, token_BT, uniform_B, mode=mode, top_blocks=1)
    assert tiny.gradient_error(got, expected) < 1e-10


class ByDomain:
    """Domains of a mixture, each sample sharing its domain's weight evenly."""

    def __init__(self, label_B, share_M):
        self.label_B, self.share_M = label_B, share_M

    def weigh(self, signals):
        self.signals = signals
        size_M = self.label_B.bincount(minlength=len(self.share_M))
        return (self.share_M / size_M)[self.label_B]


@pytest.mark.parametrize("mode", MODES)
def test_domains_weighted_by_their_size_are_the_plain_step(tiny, token_BT, mode):
    model = tiny.gpt2()
    tiny.nll(model, token_BT).mean().backward()
    expected = tiny.gradients(model)
    label_B = torch.tensor([0, 1, 0, 0, 1])
    mixer = ByDomain(label_B, torch.tensor([0.6, 0.4], dtype=torch.float64))
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with sketcher.record(token_BT, step=7):
        loss_B = tiny.nll(model, token_BT)
        weight_B = sketcher.backward(loss_B, mixer, source_B=label_B)
    assert tiny.gradient_error(tiny.gradients(model), expected) < 1e-10
    torch.testing.assert_close(weight_B, torch.full_like(weight_B, 0.2))
    signals = mixer.signals
    assert (signals.step, signals.num_samples, signals.projection) == (7, 5, 0)
    torch.testing.assert_close(signals.loss_B, loss_B.detach())
    assert not signals.loss_B.requires_grad
    assert signals.source_B is label_B
    again, _ = tiny.run(model, token_BT, weight_B, mode=mode, top_blocks=1)
    torch.testing.assert_close(signals.sketch_BK, again.sketch_BK)
    torch.testing.assert_close(signals.block_norm_B, again.block_norm_B)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_accumulate(tiny, token_BT, weight_B, mode):
    """A second micro-batch adds to `.grad`, as backward does."""
    model = tiny.gpt2()
    first, second = token_BT, token_BT.flip(0, 1)
    parts = [tiny.autograd(model, batch, weight_B) for batch in (first, second)]
    expected = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    for batch in (first, second):
        with sketcher.record(batch, 0):
            sketcher.sketch(tiny.nll(model, batch)).backward(weight_B)
    assert tiny.gradient_error(tiny.gradients(model), expected) < 1e-10


@pytest.mark.parametrize("mode", MODES)
def test_gradients_wait_for_all_micro_batches(tiny, token_BT, weight_B, mode):
    """Sketches of several batches may be pending at once, and their records open."""
    model = tiny.gpt2()
    batches = token_BT, token_BT.flip(0, 1)[:3]
    weights = weight_B, weight_B[:3]
    parts = [tiny.autograd(model, *pair) for pair in zip(batches, weights, strict=True)]
    expected = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    alone = [
        tiny.run(model, *pair, mode=mode, top_blocks=1)[0].sketch_BK
        for pair in zip(batches, weights, strict=True)
    ]
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with ExitStack() as records:
        waiting = []
        for batch in batches:
            records.enter_context(sketcher.record(batch, 0))
            waiting.append(sketcher.sketch(tiny.nll(model, batch)))
        for sketch, weight, alone_BK in zip(waiting, weights, alone, strict=True):
            assert tiny.error(sketch.sketch_BK, alone_BK) < 1e-12
            sketch.backward(weight)
    assert tiny.gradient_error(tiny.gradients(model), expected) < 1e-10
    assert not any("forward" in vars(module) for module in model.modules())


def test_halves_are_scaled_in_single_precision_and_rounded_once(tiny):
    """Weights are not rounded to bfloat16, nor is a product before its factor 1/n."""
    value = torch.randn(7, 4, 16, generator=tiny.generator("halves")).bfloat16()
    times_B = torch.rand(7, generator=tiny.generator("times")) + 0.5
    expected = torch.stack(
        [(row.float() * times).bfloat16() for row, times in zip(value, times_B, strict=True)]
    )
    assert torch.equal(scaled_plainly(value, times_B), expected)
    first_Nx, second_Ny = value[:4].flatten(0, 1), value[3:].flatten(0, 1)
    parameter = torch.nn.Parameter(torch.zeros(16, 16))
    product = (first_Nx.T @ second_Ny).float()
    for already in (0, 1):  # a second one adds to the first
        add_product(parameter, first_Nx, second_Ny, 1 / 7)
        torch.testing.assert_close(parameter.grad, (already + 1) * product / 7, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_weighed_together_are_the_whole_batch(tiny, token_BT, mode):
    """Domains, weights and the gradient of an own loop with accumulation, to 1e-12."""
    model, label_B = tiny.gpt2(), torch.tensor([0, 1, 0, 0, 1])
    mixer = ByDomain(label_B, torch.tensor([0.7, 0.3], dtype=torch.float64))
    whole = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with whole.record(token_BT, 3):
        weight_B = whole.backward(tiny.nll(model, token_BT), mixer, source_B=label_B)
    expected, signals = tiny.gradients(model), mixer.signals
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with ExitStack() as records:
        results = []
        for token_bT in token_BT.split(2):
            records.enter_context(sketcher.record(token_bT, 3))
            results.append(sketcher.sketch(tiny.nll(model, token_bT)))
        weights = sketcher.weigh(results, mixer, source_B=label_B)
        for result, weight_b in zip(results, weights, strict=True):
            result.backward(weight_b)
    sketcher.average_gradients()
    torch.testing.assert_close(torch.cat(weights), weight_B, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(mixer.signals.sketch_BK, signals.sketch_BK, rtol=1e-9, atol=1e-12)
    assert torch.equal(mixer.signals.source_B, label_B)
    assert mixer.signals.num_samples == 5
    assert tiny.gradient_error(tiny.gradients(model), expected) < 1e-12


def test_micro_batches_weighed_alone_are_said(tiny, token_BT, caplog):
    model = tiny.gpt2()
    sketcher = Sketcher(model, dim=80)
    mixer = ByDomain(torch.tensor([0, 1]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    for step, said in ((0, 0), (0, 1), (1, 1)):
        with sketcher.record(token_BT[:2], step):
            sketcher.backward(tiny.nll(model, token_BT[:2]), mixer)
        assert sum("clustered and weighted alone" in r.getMessage() for r in caplog.records) == said
        if step == 0 and said:
            model.zero_grad()
