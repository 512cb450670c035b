"""What recording asks for, and that it leaves no trace.

Shapes: B samples, T tokens, K sketch.
"""

import pytest
import torch
from torch import nn

from dograph import DoGraph
from dograph.errors import ConfigError
from dograph.sketch.rules import make_slot
from dograph.sketch.sketcher import Sketcher

MODES = ("full", "twopass", "topdown", "exact", "reference")


def sketched(tiny, sketcher, token_BT):
    return sketcher.sketch(tiny.nll(sketcher.model, token_BT))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ful"}, r"mode='ful' is not known; did you mean \"full\""),
        ({"dim": 0}, r"got dim=0"),
        ({"dim": 79}, r"dim=79 splits into 79 x 1"),
        ({"projection": "rademacher "}, r"projection='rademacher ' is not known"),
        ({"refresh": 0}, r"refresh=0"),
        ({"projection": "gaussian"}, r"projection=gaussian needs .* mode to exact or reference"),
        (
            {"projection": "none", "mode": "twopass"},
            r"projection=none needs .* mode=twopass does not hold",
        ),
        ({"mode": "topdown", "top_blocks": 0}, r"top_blocks=0, but transformer\.h has 2 blocks"),
        ({"mode": "topdown", "top_blocks": 3}, r"top_blocks=3.*give 1 to 2"),
        ({"mode": "head", "head": "lm_head"}, r"head='lm_head': give a layer of the model"),
    ],
)
def test_bad_settings(tiny, options, message):
    with pytest.raises(ConfigError, match=message):
        Sketcher(tiny.gpt2(), **{"dim": 80, **options})


@pytest.mark.parametrize("batch", [0, None, {"input_ids": 1}, torch.arange(4)])
def test_what_is_no_batch_is_refused(tiny, batch):
    sketcher = Sketcher(tiny.gpt2(), dim=80)
    with pytest.raises(ConfigError, match=r"shape \(samples, tokens\), got \(?\w+"):
        sketcher.record(batch).__enter__()


class Doubled:
    def weigh(self, signals):
        return torch.full((signals.num_samples,), 2 / signals.num_samples)


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (DoGraph, r"give a mixer, such as DoGraph\(\), not <class"),
        ("dograph", r"give a mixer, such as DoGraph\(\), not 'dograph'"),
    ],
)
def test_what_does_not_weigh_is_refused_before_the_first_update(tiny, token_BT, mixer, message):
    model = tiny.gpt2()
    sketcher = Sketcher(model, dim=80)
    with sketcher.record(token_BT), pytest.raises(ConfigError, match=message):
        sketcher.backward(tiny.nll(model, token_BT), mixer)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weights_that_do_not_sum_to_1_are_said_once(tiny, token_BT, caplog):
    model = tiny.gpt2()
    sketcher = Sketcher(model, dim=80)
    for step in range(2):
        with sketcher.record(token_BT, step):
            sketcher.backward(tiny.nll(model, token_BT), Doubled())
        model.zero_grad()
    assert caplog.text.count("the weights of Doubled sum to 2, not to 1") == 1


def test_topdown_needs_a_stack_of_blocks():
    model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    with pytest.raises(ConfigError, match="no ModuleList of blocks to cut"):
        Sketcher(model, mode="topdown", dim=80)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["mean", "none", "fewer"])
def test_losses_of_a_wrong_shape(tiny, token_BT, mode, reduction):
    model = tiny.gpt2()
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with sketcher.record(token_BT):
        loss_B = tiny.nll(model, token_BT)
        wrong = {"mean": loss_B.mean(), "none": loss_B[:, None] / 2, "fewer": loss_B[:3]}
        with pytest.raises(ConfigError, match=r'one loss for each of the 5 .*reduction="none"'):
            sketcher.sketch(wrong[reduction])
        if mode in ("twopass", "reference"):
            with pytest.raises(ConfigError, match="one loss for each of the 5"):
                sketcher.signals(wrong[reduction])
        with pytest.raises(ConfigError, match="one loss for each of the 5"):
            sketcher.backward(wrong[reduction], DoGraph())


@pytest.mark.parametrize("mode", MODES[:-1])
def test_losses_that_share_something_are_refused(tiny, token_BT, mode):
    """Centred on the batch, a loss has no gradient of its own sample."""
    sketcher = Sketcher(tiny.gpt2(), mode=mode, dim=80, top_blocks=1)
    with sketcher.record(token_BT):
        loss_B = tiny.nll(sketcher.model, token_BT)
        with pytest.raises(ConfigError, match="depends on other samples of the batch"):
            sketcher.sketch(loss_B - loss_B.mean() / 2)


@pytest.mark.parametrize("mode", MODES[:-1])
def test_a_forward_outside_of_the_record(tiny, token_BT, mode):
    sketcher = Sketcher(tiny.gpt2(), mode=mode, dim=80, top_blocks=1)
    loss_B = tiny.nll(sketcher.model, token_BT)
    with (
        sketcher.record(token_BT),
        pytest.raises(ConfigError, match=r"no layer was recorded; .* inside sketcher\.record"),
    ):
        sketcher.sketch(loss_B)


def test_a_sketch_before_any_record(tiny, token_BT):
    sketcher = Sketcher(tiny.gpt2(), mode="full", dim=80)
    with pytest.raises(ConfigError, match=r"no layer was recorded; .* inside sketcher\.record"):
        sketched(tiny, sketcher, token_BT)


@pytest.mark.parametrize("mode", ["full", "twopass", "exact"])
def test_a_forward_outside_of_the_record_after_a_good_step(tiny, token_BT, mode):
    sketcher = Sketcher(tiny.gpt2(), mode=mode, dim=80)
    with sketcher.record(token_BT):
        sketched(tiny, sketcher, token_BT)
    with pytest.raises(ConfigError, match="record"):
        sketched(tiny, sketcher, token_BT)


@pytest.mark.parametrize("mode", MODES[:-1])
def test_a_forward_without_gradients(tiny, token_BT, mode):
    sketcher = Sketcher(tiny.gpt2(), mode=mode, dim=80, top_blocks=1)
    with (
        sketcher.record(token_BT),
        torch.no_grad(),
        pytest.raises(ConfigError, match="with gradients enabled"),
    ):
        sketched(tiny, sketcher, token_BT)


@pytest.mark.parametrize("mode", MODES)
def test_recording_changes_no_output(tiny, token_BT, mode):
    model = tiny.gpt2()
    expected_B = tiny.nll(model, token_BT)
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)
    with sketcher.record(token_BT):
        torch.testing.assert_close(tiny.nll(model, token_BT), expected_B, rtol=1e-12, atol=0)
    with sketcher.record(token_BT), torch.no_grad():
        torch.testing.assert_close(tiny.nll(model, token_BT), expected_B, rtol=1e-12, atol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fails", [False, True])
def test_forwards_are_restored(tiny, token_BT, weight_B, mode, fails):
    """Also one that was somebody else's replacement."""
    model = tiny.gpt2()
    theirs = model.lm_head.__dict__["forward"] = model.lm_head.forward
    sketcher = Sketcher(model, mode=mode, dim=80, top_blocks=1)

    def record():
        with sketcher.record(token_BT):
            changed = {n for n, m in model.named_modules() if "forward" in vars(m)}
            assert ("transformer.wte" in changed) == (mode != "reference")
            tiny.nll(model, token_BT)
            if fails:
                raise KeyError("anything")

    if fails:
        with pytest.raises(KeyError):
            record()
    else:
        record()
    assert {n for n, m in model.named_modules() if "forward" in vars(m)} == {"lm_head"}
    assert vars(model.lm_head)["forward"] is theirs
    plain = tiny.autograd(model, token_BT, weight_B)
    assert set(plain) == {name for name, _ in model.named_parameters()}
    with sketcher.record(token_BT):  # and the next step is none the worse
        sketched(tiny, sketcher, token_BT).backward(weight_B)
    assert tiny.gradient_error(tiny.gradients(model), plain) < 1e-10


def test_slots_take_no_room(tiny, token_BT):
    sketcher = Sketcher(tiny.gpt2(), mode="full", dim=5120)
    with sketcher.record(token_BT):
        slots = [slot for rule in sketcher.rules for slot in rule.slots]
    assert len(slots) == 2 * (9 + 2) + (9 + 2) + (8 + 5)  # halves, sketches; biases and norms
    storages = {s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in slots}
    assert sum(slot.numel() for slot in slots) > 100_000
    assert sum(storages.values()) < 1024


def test_a_slot_receives_a_gradient_of_its_shape():
    slot = make_slot((3, 4), torch.float64, torch.device("cpu"))
    wanted = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    (got,) = torch.autograd.grad((slot * wanted).sum(), slot)
    assert torch.equal(got, wanted)
    assert not slot.any()


def test_batches_of_changing_size_and_length(tiny, token_BT, weight_B):
    """Slots follow; sketches do not remember."""
    model = tiny.gpt2()
    for mode in ("full", "topdown"):
        options = {"mode": mode, "top_blocks": 1}
        sketcher = Sketcher(model, dim=80, **options)
        for batch in (token_BT, token_BT[:2], token_BT[:, :7], token_BT):
            with sketcher.record(batch):
                sketch_BK = sketched(tiny, sketcher, batch).sketch_BK
            fresh, _ = tiny.run(model, batch, weight_B[: len(batch)], **options)
            assert tiny.error(sketch_BK, fresh.sketch_BK) < 1e-12, mode


def test_projections_are_made_only_when_they_change(tiny, token_BT):
    sketcher = Sketcher(tiny.gpt2(), mode="full", dim=80, refresh=2)
    held = []
    for step in range(4):
        with sketcher.record(token_BT, step):
            projection = sketcher.rules[0].projection
            held.append((projection, projection[0].clone()))
    assert held[0][0] is held[1][0]
    assert held[2][0] is held[3][0]
    assert not torch.equal(held[1][1], held[2][1])


@pytest.mark.parametrize(("mode", "keep"), [("full", True), ("exact", True), ("twopass", False)])
def test_a_graph_that_nobody_needs_is_freed(tiny, token_BT, mode, keep):
    sketcher = Sketcher(tiny.gpt2(), mode=mode, dim=80)
    with sketcher.record(token_BT):
        loss_B = tiny.nll(sketcher.model, token_BT)
        sketcher.sketch(loss_B, keep=keep)
        with pytest.raises(RuntimeError, match="second time"):
            loss_B.sum().backward()
