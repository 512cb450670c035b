"""Models of a user's own in every mode: the gradient of one backward a sample, or a refusal.

Shapes: B samples, T tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM, T5Config, T5ForConditionalGeneration

import model_kinds as kinds
import model_zoo as zoo
from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher
from model_zoo import Decoder, class_called, made, replace_forward, with_layers
from verdicts import (
    DIM,
    EXACT,
    FILLING,
    MODES,
    REFUSED,
    VOCABULARY,
    FixedWeights,
    Said,
    in_double,
    nll,
    randomised,
    some_tokens,
    unequal,
    verdict,
)

SQUARE_BT = some_tokens(6, 6)  # as many tokens as samples
EVERY = frozenset(MODES)


class Case(NamedTuple):
    """A model, what `verdict` is told of it, and the modes that must run it exactly."""

    build: Callable[[], nn.Module]
    exact: frozenset[str] = EVERY
    options: Mapping[str, Any] = MappingProxyType({})


def but(*modes: str) -> frozenset[str]:
    return EVERY - set(modes)


def setting(name: str) -> dict[str, Any]:
    """A flag of the model that is set after the first step, and the sketch of it let be."""

    def before_step(model: nn.Module, step: int) -> None:
        setattr(model, name, step > 0)

    return {"steps": 2, "before_step": before_step, "holds_sketch": False}


def replaced(place: str, factor: float) -> Callable[[], nn.Module]:
    return lambda: replace_forward(Decoder(), factor=factor, place=place)


def norms(name: str) -> Callable[[], nn.Module]:
    return partial(Decoder, norm=class_called(name))


SILENT = {
    "plain": Case(Decoder),
    "head declared first": Case(zoo.HeadFirst),
    "functional tie": Case(
        zoo.FunctionalTie, but("head"), {"make_sketched": made(zoo.DetachedTie)}
    ),
    "weight used elsewhere": Case(zoo.WeightElsewhere),
    "tie from step 2": Case(zoo.LateTie, frozenset(["twopass"]), setting("tied")),
    "skip from step 2": Case(zoo.LateSkip, but("topdown"), setting("skips")),
    "skip from the embedding": Case(zoo.EmbeddingSkip),
    "U-net skips": Case(zoo.UNet, EVERY, {"top_blocks": 2}),
    "sum over blocks": Case(zoo.SumOfBlocks),
    "ModuleList of heads": Case(zoo.HeadsInAList, but("topdown")),
    "hidden penalty": Case(zoo.CaptureHidden, frozenset(), {"loss_of": zoo.penalised}),
    "penalty on an output": Case(zoo.OutputsHidden, EVERY, {"loss_of": zoo.penalised_outputs}),
    "same forward replaced": Case(replaced("blocks.1.up", 1.0)),
    "Linear forward replaced": Case(replaced("blocks.1.up", 2.0)),
    "norm forward replaced": Case(replaced("blocks.1.before", 2.0)),
    "embedding forward replaced": Case(replaced("token", 2.0)),
    "head forward replaced": Case(replaced("head", 2.0), but("head")),
    "own LlamaRMSNorm": Case(norms("LlamaRMSNorm")),
    "own T5LayerNorm": Case(norms("T5LayerNorm")),
    "own Conv1D": Case(with_layers(lambda: zoo.Conv1D(24, 16))),
    "Linear with another forward": Case(with_layers(lambda: zoo.OneMore(16, 24))),
    "transposed Linear": Case(with_layers(lambda: zoo.TransposedLinear(16, 24))),
    "time first, B == T": Case(zoo.TimeFirst, frozenset(), {"token_BT": SQUARE_BT}),
    "time first": Case(zoo.TimeFirst, frozenset()),
    "relative bias, B == T": Case(zoo.RelativeBias, frozenset(["head"]), {"token_BT": SQUARE_BT}),
    "relative bias": Case(zoo.RelativeBias, frozenset(["head"])),
}
KINDS = {
    "nanoGPT": Case(kinds.NanoGPT),
    "nanoGPT without biases": Case(partial(kinds.NanoGPT, bias=False)),
    "modded-nanogpt": Case(kinds.Modded, but("head"), {"top_blocks": 2}),
    "nanochat": Case(kinds.Nanochat, but("head")),
    "LitGPT": Case(kinds.LitGPT),
    "LitGPT with an offset": Case(partial(kinds.LitGPT, add_unit_offset=True)),
    "einsum": Case(kinds.Einsum),
    "bare positions": Case(kinds.BarePositions),
    "one block reused": Case(kinds.Reused, but("topdown")),
    "(B T, D) layers": Case(kinds.FlatTokens),
    "packed documents": Case(kinds.Packed),
    "LoRA": Case(partial(kinds.lora, "attention.qkv", "up"), but("head")),
    "LoRA on the head": Case(partial(kinds.lora, "attention.qkv", "head"), but("head")),
    "frozen parts": Case(partial(kinds.frozen, "token", "blocks.0.up.weight", "last")),
    "frozen head": Case(partial(kinds.frozen, "head"), but("head")),
    "frozen below the cut": Case(
        partial(kinds.frozen, "token", "position", "blocks.0"), but("topdown")
    ),
    "only the head trains": Case(
        partial(kinds.frozen, "token", "position", "blocks", "last"), but("topdown", "head")
    ),
    "(B, T, k) tokens": Case(kinds.SeveralTokens, frozenset(["topdown", "head"])),
    "one token a sample": Case(kinds.OnePerSample, frozenset(["topdown", "head"])),
    "blocks by keyword": Case(kinds.KeywordBlocks, but("topdown")),
    "gains": Case(kinds.Gains),
}
CASES = SILENT | KINDS
RARER = ("exact", "twopass")


def judged(name: str, mode: str, **options: Any) -> Any:
    case = CASES[name]
    given = dict(case.options)
    if mode != "topdown":
        given.pop("top_blocks", None)
    return verdict(made(case.build), mode, **given, **options)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        # What is not silent in itself runs in every mode in the slow suite.
        pytest.param(name, mode, marks=[pytest.mark.slow] * (name in KINDS and mode in RARER))
        for name in CASES
        for mode in MODES
    ],
)
def test_exact_or_refused_and_never_silently_wrong(name, mode):
    got = judged(name, mode)
    assert got.kind == EXACT or (got.kind == REFUSED and mode not in CASES[name].exact), str(got)


@pytest.mark.parametrize("name", ["functional tie", "weight used elsewhere"])
def test_a_sketch_that_misses_a_use_is_said(name):
    """Mode twopass has the right gradient there, but not the right sketch."""
    got = judged(name, "twopass")
    assert got.kind == EXACT
    assert got.sketch_error > 1e-2
    assert any("token.weight" in text or "attention.out" in text for text in got.warned)


def test_a_whole_sketch_is_not_warned_of():
    for mode in MODES:
        got = judged("plain", mode)
        assert got.warned == [], mode
        assert got.outside == {}, mode


@pytest.mark.parametrize("mode", ["full", "exact"])
@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("functional tie", {"token.weight"}),
        ("gains", {f"blocks.{i}.{own}" for i in (0, 1) for own in ("gain", "scale")}),
        ("bare positions", {"pos_embed"}),
        ("einsum", {f"blocks.{i}.{own}" for i in (0, 1) for own in ("qkv", "out")}),
        ("nanochat", {"resid_lambdas", "x0_lambdas"}),
    ],
)
def test_parameters_outside_the_sketch_are_listed_with_their_share(name, outside, mode):
    got = judged(name, mode)
    model = CASES[name].build()
    total = sum(parameter.numel() for parameter in model.parameters())
    assert set(got.outside) == outside
    for parameter, share in got.outside.items():
        assert share == pytest.approx(model.get_parameter(parameter).numel() / total)
    (said,) = [text for text in got.warned if next(iter(outside)).split(".")[-1] in text]
    assert all(parameter in said for parameter in outside)


@pytest.mark.parametrize("mode", FILLING)
def test_parameters_outside_are_named_once(mode):
    got = judged("gains", mode, steps=3)
    assert got.kind == EXACT
    assert sum("blocks.0.gain" in text for text in got.warned) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_excluded_parameters_train_and_stay_out_of_the_sketch(mode):
    exclude = ("blocks.1.up", "last.bias", "position")
    got = judged("plain", mode, exclude=exclude)
    assert got.kind == EXACT, str(got)
    if mode in ("full", "exact"):
        assert set(got.outside) == {
            "blocks.1.up.weight",
            "blocks.1.up.bias",
            "last.bias",
            "position.weight",
        }


def test_mode_head_names_its_layer_where_others_have_no_sketch():
    """With a functional tie no layer has the logits, so the cut is at the last linear layer."""
    (said,) = judged("functional tie", "head").warned
    assert "Mode head sketches blocks.1." in said
    assert "and 1" in said
    assert "Sketcher(head=LAYER)" in said


@pytest.mark.parametrize("name", ["nanoGPT", "LitGPT", "transposed Linear", "(B T, D) layers"])
def test_layers_are_known_by_what_they_compute(name):
    """Nothing of these models is left out of the sketch, whatever its classes are called."""
    got = judged(name, "full")
    assert got.kind == EXACT, str(got)
    assert got.outside == {}


@pytest.mark.parametrize("name", ["own LlamaRMSNorm", "own T5LayerNorm", "own Conv1D"])
def test_layers_are_not_known_by_the_names_of_their_classes(name):
    got = judged(name, "full")
    assert got.kind == EXACT, str(got)
    part = "up" if "Conv1D" in name else "before"
    assert {f"blocks.{i}.{part}.weight" for i in (0, 1)} <= set(got.outside)


@pytest.mark.parametrize("name", ["modded-nanogpt", "nanochat", "head declared first"])
def test_a_head_that_is_named(name):
    def options_of(model: Any) -> dict[str, Any]:
        return {"head": model.head if name == "head declared first" else model.lm_head}

    got = judged(name, "head", options_of=options_of)
    assert got.kind == EXACT, str(got)


@pytest.mark.parametrize("name", ["functional tie", "modded-nanogpt", "nanochat"])
def test_a_head_that_is_not_found_is_asked_for(name):
    got = judged(name, "head")
    assert got.kind == EXACT or "Sketcher(head=" in got.message


@pytest.mark.parametrize("name", ["LoRA", "frozen head"])
def test_an_output_layer_that_is_not_trained_is_refused(name):
    got = judged(name, "head")
    assert got.kind == REFUSED, str(got)
    assert "head" in got.message


class Wrapped(nn.Module):
    """A library's model inside a user's module, which adapts its embedding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.adapt = inner, nn.Linear(8, 8)

    def forward(self, token_BT: torch.Tensor) -> Any:
        embedded_BTD = self.inner.get_input_embeddings()(token_BT)
        return self.inner(inputs_embeds=embedded_BTD + self.adapt(embedded_BTD)).logits


def wrapped_opt() -> nn.Module:
    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        word_embed_proj_dim=8,
        dropout=0.0,
        use_cache=False,
        pad_token_id=1,
    )
    return randomised(Wrapped(OPTForCausalLM(config))).double()


@pytest.mark.parametrize("mode", MODES)
def test_opt_inside_a_wrapper(mode):
    got = verdict(wrapped_opt, mode)
    assert got.kind == EXACT, str(got)


def t5() -> nn.Module:
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        dropout_rate=0.0,
        use_cache=False,
    )
    return randomised(T5ForConditionalGeneration(config)).double()


def t5_loss(model: Any, token_BT: torch.Tensor) -> torch.Tensor:
    half = token_BT.shape[1] // 2
    return nll(
        lambda target_BT: model(input_ids=token_BT[:, :half], decoder_input_ids=target_BT),
        token_BT[:, half:],
    )


@pytest.mark.parametrize("size", [4, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_t5(mode, size):
    """Encoder states reach the decoder past any cut; B equals T for 4 samples."""
    with in_double():
        got = verdict(t5, mode, loss_of=t5_loss, token_BT=some_tokens(size, 8))
    assert got.kind in (EXACT, REFUSED), str(got)


def recorded(sketcher: Sketcher, model: nn.Module, token_BT: torch.Tensor, step: int = 0) -> None:
    dtype = next(model.parameters()).dtype
    with sketcher.record(token_BT, step):
        sketcher.backward(nll(model, token_BT), FixedWeights(unequal(len(token_BT), dtype)))


class Counting(Decoder):
    """Counts its forwards by the number of rows; drops units, and keeps a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, bool]] = []  # and whether with gradients
        self.drop = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(()))

    def embedded(self, token_BT: torch.Tensor) -> torch.Tensor:
        self.rows.append((len(token_BT), torch.is_grad_enabled()))
        self.seen += 1
        return self.drop(super().embedded(token_BT))


@pytest.mark.parametrize("mode", MODES)
def test_the_check_reruns_few_rows_once(mode):
    model, token_BT = made(Counting)(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    assert model.rows == []
    recorded(sketcher, model, token_BT)
    assert model.rows.count((5, True)) == 1
    with_gradients = [rows for rows, enabled in model.rows if enabled and rows != 5]
    without = [rows for rows, enabled in model.rows if not enabled]
    # Recorded and unrecorded, and forwards alone to try positions and to find the output layer.
    assert 2 <= len(with_gradients) <= 3
    assert max(with_gradients) <= 4
    assert len(without) <= 1
    model.rows.clear()
    recorded(sketcher, model, token_BT, 1)
    assert model.rows == [(5, True)]


@pytest.mark.parametrize("mode", MODES)
def test_the_check_leaves_no_trace(mode):
    """Random numbers, buffers, gradients that were there: as if it had not run."""
    left = {}
    for check in ("first", "never"):
        model, token_BT = made(Counting)(), some_tokens()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1, check=check)
            recorded(sketcher, model, token_BT)
            state = torch.get_rng_state()
        assert model.training
        assert not any("forward" in vars(module) for module in model.modules())
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        left[check] = [state, model.seen.clone(), *gradients]
    assert all(map(torch.equal, left["first"], left["never"]))


@pytest.mark.parametrize("mode", MODES)
def test_never_checks_nothing(mode):
    model, token_BT = made(Counting)(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1, head=model.head, check="never")
    recorded(sketcher, model, token_BT)
    assert [rows for rows, enabled in model.rows if enabled] == [5]


def test_always_checks_every_step():
    model, token_BT = made(Counting)(), some_tokens()
    sketcher = Sketcher(model, dim=DIM, check="always")
    for step in range(2):
        model.rows.clear()
        recorded(sketcher, model, token_BT, step)
        assert len(model.rows) > 1


def test_the_choices_of_check():
    with pytest.raises(ConfigError, match=r"check=.*sometimes.*first"):
        Sketcher(Decoder(), dim=DIM, check="sometimes")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["nanoGPT", "modded-nanogpt"])
def test_no_false_alarm_in_lower_precision(name, mode, dtype):
    """Every case is exact in float64; what rounding adds is no error."""
    if mode == "head" and name == "modded-nanogpt":
        pytest.skip("its head is to be named")
    model = made(CASES[name].build)().to(dtype)
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    with Said():  # of what is outside of the sketch
        recorded(sketcher, model, some_tokens())


@pytest.mark.parametrize("mode", MODES)
def test_no_false_alarm_under_autocast(mode):
    model, token_BT = made(Decoder)().float(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    with torch.autocast("cpu", torch.bfloat16), sketcher.record(token_BT, 0):
        loss_B = nll(model, token_BT).float()
        sketcher.backward(loss_B, FixedWeights(unequal(5, torch.float32)))
