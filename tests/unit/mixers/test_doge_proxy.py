"""DoGE's proxy against its update written out, and against exact gradients of every source.

Shapes: B samples, T tokens, K sketch, S sources, P parameters.
"""

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from dograph.errors import ConfigError
from dograph.mixers.doge import DoGEProxy
from dograph.mixers.registry import build_mixer
from dograph.sketch.sketcher import Sketcher
from dograph.testing import check_mixer
from dograph.types import Signals

NAMES = ["a", "b", "c"]
UNCLIPPED = 1e9
RULES = ["same_batch", "independent"]
LR = 5e-4


@dataclass
class Facts:
    tokens: dict[str, int]
    steps: int = 100
    budget: int = 1000


def signals(rows, sources, step=0, lr=LR):
    sketch_BK = torch.as_tensor(rows, dtype=torch.float64)
    return Signals(
        step=step,
        num_samples=len(sketch_BK),
        sketch_BK=sketch_BK,
        source_B=torch.tensor(sources),
        lr=lr,
    )


@pytest.mark.parametrize("options", [{}, {"exclude_self": True}, {"smoothing": 0.1}], ids=str)
def test_contract(options):
    check_mixer(build_mixer("doge-proxy", {"sources": NAMES, **options}))


def test_vector():
    mixer = DoGEProxy(sources=NAMES, clip_norm=UNCLIPPED, alignment="same_batch")
    weight_B = mixer.weigh(signals([[1, 0, 0], [0, 2, 0], [1, 1, 1]], [0, 1, 2]))
    score_S = (mixer.weight_S * 3).log() * 0.01  # up to a constant
    expected = [0.00063397, 0.00190192, 0.00190192]
    assert (score_S - score_S[0]).tolist() == pytest.approx(
        [x - expected[0] for x in expected], abs=1e-8
    )
    a = [0.305776, 0.347112, 0.347112]
    assert mixer.weight_S.tolist() == pytest.approx(a, abs=1e-6)
    assert mixer.average_S.tolist() == pytest.approx(a, abs=1e-6)
    assert weight_B.tolist() == pytest.approx(a, abs=1e-6)
    assert mixer.alignment_S.tolist() == pytest.approx([2, 6, 6])


def between_samples(rows):
    """Mean of the products of two different samples, one by one."""
    pairs = [(a, b) for a in range(len(rows)) for b in range(len(rows)) if a != b]
    return np.mean([rows[a] @ rows[b] for a, b in pairs])


def by_hand(steps, *, targets, clip, mu, exclude_self, alignment):
    """The authors' loop in numpy: weights after every step."""
    train = [i for i in range(3) if targets is None or i not in targets]
    targets = list(range(3)) if targets is None else targets
    g, own, a, path = np.zeros((3, 4)), np.zeros(3), np.zeros(3), []
    a[train] = 1 / len(train)
    for rows, source_B, lr in steps:
        for i in set(source_B.tolist()):
            mean, before = rows[source_B == i].mean(axis=0), g[i].copy()
            scale = min(1, clip / (np.linalg.norm(mean) + 1e-6))
            g[i] = mean * scale
            one = (source_B == i).sum() == 1
            own[i] = g[i] @ before if one else scale**2 * between_samples(rows[source_B == i])
            if alignment == "same_batch":
                own[i] = g[i] @ g[i]
        norm = np.mean([np.linalg.norm(g[i]) for i in train])
        new = np.zeros(3)
        for i in train:
            self_term = own[i] if i in targets and not exclude_self else 0
            aligned = sum(g[i] @ g[j] for j in targets if i != j) + self_term
            score = np.clip(lr * aligned / (norm + 1e-6), 0, 5 * lr)
            new[i] = a[i] * math.exp(score / mu)
        a = new / new.sum()
        path.append(a)
    return path


@pytest.mark.parametrize("targets", [None, ["b"], ["a", "c"]], ids=str)
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("alignment", RULES)
def test_many_steps_by_hand(targets, exclude_self, alignment):
    """Sources come and go; rates change; large gradients are scaled down, negative scores are 0."""
    rng = np.random.default_rng(2)
    steps = []
    for n in range(40):
        source_B = rng.integers(0, 3 if n > 2 else 2, size=4)
        steps.append((2 * rng.normal(size=(4, 4)), source_B, 1e-3 * (1 + n % 5)))
    options = {"mu": 0.03, "exclude_self": exclude_self, "alignment": alignment}
    mixer = DoGEProxy(sources=NAMES, clip_norm=2.0, targets=targets, **options)
    indices = None if targets is None else [NAMES.index(name) for name in targets]
    path = by_hand(steps, targets=indices, clip=2.0, **options)
    for n, ((rows, source_B, lr), expected) in enumerate(zip(steps, path, strict=True)):
        weight_B = mixer.weigh(signals(rows, source_B.tolist(), n, lr)).numpy()
        assert mixer.weight_S.numpy() == pytest.approx(expected, rel=1e-9)
        assert weight_B == pytest.approx(sample_weights(rows, source_B, expected), rel=1e-9)
    assert mixer.average_S.numpy() == pytest.approx(np.mean(path, axis=0), rel=1e-9)


def sample_weights(rows, source_B, a):
    """a_i * (what g_i was scaled by) / n_i each, summing to 1; alike where nothing trains."""
    each = []
    for i in source_B:
        norm = np.linalg.norm(rows[source_B == i].mean(axis=0))
        each.append(a[i] * min(1, 2.0 / (norm + 1e-6)) / (source_B == i).sum())
    return np.array(each) / sum(each) if sum(each) else np.full(len(each), 1 / len(each))


def test_one_step_moves_log_weights_by_five_rates_at_most():
    """Gradients of a and c are long enough to be cut off there, that of b is not."""
    mixer = DoGEProxy(sources=NAMES, clip_norm=UNCLIPPED, alignment="same_batch")
    mixer.weigh(signals([[40.0, 0, 0], [0, 2.0, 0], [0, 0, 48.0]], [0, 1, 2]))
    norm = (40 + 2 + 48) / 3 + 1e-6
    scores = [5.0, 4 / norm, 5.0]  # of a and c: 1600 / 30 and 2304 / 30
    raised = [math.exp(LR * score / 0.01) for score in scores]
    expected = [x / sum(raised) for x in raised]
    assert mixer.weight_S.tolist() == pytest.approx(expected, rel=1e-12)


def test_smoothing_is_over_the_sources_that_train():
    mixer = DoGEProxy(sources=NAMES, clip_norm=UNCLIPPED, targets=["b"], smoothing=0.2)
    mixer.weigh(signals([[3.0, 0, 0], [1.0, 2.0, 0], [0, 1.0, 1.0]], [0, 1, 2]))
    norm = (3 + math.sqrt(2)) / 2 + 1e-6
    raised = [math.exp(LR * aligned / norm / 0.01) for aligned in (3.0, 2.0)]
    expected = [0.8 * x / sum(raised) + 0.2 / 2 for x in raised]
    assert mixer.weight_S.tolist() == pytest.approx([expected[0], 0.0, expected[1]], rel=1e-12)


def weights_under_noise(seed, alignment, each):
    """One true gradient for three sources; samples differ from it by noise of 0.5, 1 and 4."""
    rng, dim, noise = np.random.default_rng(seed), 256, np.array([0.5, 1.0, 4.0])
    true, source_B = rng.normal(size=dim) / dim**0.5, np.arange(3).repeat(each)
    mixer = DoGEProxy(sources=NAMES, clip_norm=UNCLIPPED, alignment=alignment)
    for n in range(100):
        noise_BK = rng.normal(size=(len(source_B), dim)) * noise[source_B, None]
        mixer.weigh(signals(true + noise_BK / dim**0.5, source_B, n))
    return mixer.weight_S.numpy()


@pytest.mark.parametrize("each", [1, 2, 8])
def test_noise_alone_moves_no_weight(each):
    """Equal gradients and unequal noise. With one sample the batch before is the other draw."""
    assert weights_under_noise(0, "same_batch", each)[2] > 0.99
    run_NS = np.stack([weights_under_noise(seed, "independent", each) for seed in range(6)])
    assert run_NS.mean(axis=0) == pytest.approx(1 / 3, abs=0.04)
    assert run_NS == pytest.approx(1 / 3, abs=0.2)  # a single run strays by chance


def test_a_state_without_the_products_between_samples_goes_on_as_it_began():
    rng = np.random.default_rng(5)
    steps = [signals(rng.normal(size=(6, 4)), rng.integers(0, 3, 6), n) for n in range(12)]
    before, resumed = DoGEProxy(sources=NAMES, alignment="same_batch"), DoGEProxy()
    for each in steps[:5]:
        before.weigh(each)
    old = copy.deepcopy(before.state_dict())
    del old["squares"]
    resumed.load_state_dict(old)
    for each in steps[5:]:
        assert torch.equal(before.weigh(each), resumed.weigh(each))
        again = DoGEProxy()
        again.load_state_dict(copy.deepcopy(resumed.state_dict()))
        resumed = again
    assert torch.equal(before.weight_S, resumed.weight_S)


def test_defaults_are_the_authors():
    for mixer in (DoGEProxy(), build_mixer("doge-proxy", {})):
        assert (mixer.options.mu, mixer.options.clip_norm, mixer.options.smoothing) == (
            0.01,
            5.0,
            0.0,
        )
        assert (mixer.options.targets, mixer.options.exclude_self) == (None, False)


def tiny_model():
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=64,
        n_positions=12,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).double()


def losses(model, token_BT):
    logits_BTV = model(input_ids=token_BT, use_cache=False).logits[:, :-1]
    nll_N = F.cross_entropy(logits_BTV.flatten(0, 1), token_BT[:, 1:].flatten(), reduction="none")
    return nll_N.view(len(token_BT), -1).mean(dim=1)


SOURCE_B = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])


def batch():
    """Samples of a source have some tokens in common, so that alignments differ."""
    draw = torch.Generator().manual_seed(1)
    return torch.stack(
        [torch.randint(18 * s, 18 * s + 28, (12,), generator=draw) for s in SOURCE_B]
    )


def exact_gradients(model, token_BT, group_B=SOURCE_B):
    """One backward a group, by default a source: G_SP."""
    rows = []
    for s in range(int(group_B.max()) + 1):
        model.zero_grad()
        losses(model, token_BT[s == group_B]).mean().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


def seen(model, token_BT, **how):
    sketcher = Sketcher(model, **how)
    with sketcher.record(token_BT):
        found = sketcher.signals(losses(model, token_BT), SOURCE_B)
    return replace(found, lr=LR)


@pytest.mark.parametrize("alignment", RULES)
def test_exact_gradients_of_every_source_are_the_oracle(alignment):
    model, token_BT = tiny_model(), batch()
    gradient_SP = exact_gradients(model, token_BT)
    clip = float(gradient_SP.norm(dim=1).sort().values[1])  # cuts one of the three
    scale_S = (clip / (gradient_SP.norm(dim=1) + 1e-6)).clamp_max(1)
    gradient_SP = scale_S[:, None] * gradient_SP
    aligned_S = gradient_SP @ gradient_SP.sum(dim=0)
    if alignment == "independent":
        sample_BP = exact_gradients(model, token_BT, torch.arange(8)).numpy()
        own_S = torch.tensor([between_samples(sample_BP[s == SOURCE_B.numpy()]) for s in range(3)])
        aligned_S += scale_S.square() * own_S - gradient_SP.square().sum(dim=1)
    score_S = (LR * aligned_S / (gradient_SP.norm(dim=1).mean() + 1e-6)).clamp(0, 5 * LR)
    a_S = torch.softmax(score_S / 0.01, dim=0)
    assert bool((score_S < 5 * LR).all())
    assert alignment == "independent" or bool((score_S > 0).all())  # none is at a bound

    mixer = DoGEProxy(sources=NAMES, clip_norm=clip, alignment=alignment)
    weight_B = mixer.weigh(seen(model, token_BT, mode="exact", projection="none"))
    assert torch.allclose(mixer.alignment_S, aligned_S, rtol=1e-10, atol=1e-10)
    assert torch.allclose(mixer.weight_S, a_S, rtol=0, atol=1e-10)

    model.zero_grad()
    (weight_B * losses(model, token_BT)).sum().backward()
    taken_P = torch.cat([p.grad.flatten() for p in model.parameters()])
    wanted_P = a_S @ gradient_SP
    assert float(F.cosine_similarity(taken_P, wanted_P, dim=0)) == pytest.approx(1, abs=1e-12)


def test_sketches_estimate_the_alignment():
    """Unbiased: over 40 projections within 4 standard errors, each within sqrt(2/K) or so."""
    model, token_BT, dim = tiny_model(), batch(), 1280
    gradient_SP = exact_gradients(model, token_BT)
    total_P = gradient_SP.sum(dim=0)
    aligned_S = gradient_SP @ total_P
    unit_S = gradient_SP.norm(dim=1) * total_P.norm()
    errors = []
    for seed in range(40):
        mixer = DoGEProxy(sources=NAMES, clip_norm=UNCLIPPED, alignment="same_batch")
        mixer.weigh(seen(model, token_BT, mode="full", dim=dim, seed=seed))
        errors.append((mixer.alignment_S - aligned_S) / unit_S)
    error_NS = torch.stack(errors)
    assert error_NS.square().mean().sqrt() < 1.5 * math.sqrt(2 / dim)
    assert error_NS.square().mean().sqrt() > 0.1 * math.sqrt(2 / dim)  # or nothing was projected
    assert bool((error_NS.mean(dim=0).abs() < 4 * error_NS.std(dim=0) / math.sqrt(40)).all())


def test_state_goes_on_where_it_stopped():
    rng = np.random.default_rng(4)
    steps = [signals(rng.normal(size=(4, 6)), rng.integers(0, 3, 4).tolist(), n) for n in range(20)]
    whole = DoGEProxy(sources=NAMES, targets=["c"])
    for n, each in enumerate(steps):
        if n == 11:
            state = copy.deepcopy(whole.state_dict())
        weight_B = whole.weigh(each)
    resumed = DoGEProxy(targets=["c"])
    resumed.load_state_dict(state)
    for each in steps[11:]:
        again_B = resumed.weigh(each)
    assert torch.equal(again_B, weight_B)
    assert torch.equal(resumed.gradient_SK, whole.gradient_SK)
    assert torch.equal(resumed.square_S, whole.square_S)


def test_sketches_that_are_no_numbers_change_nothing():
    mixer = DoGEProxy(sources=NAMES)
    mixer.weigh(signals([[1.0, float("inf")], [3.0, 1.0]], [0, 1]))
    mixer.weigh(signals([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0]], [0, 1, 1]))
    before = mixer.weight_S, mixer.gradient_SK
    assert mixer.square_S.tolist() == [0.0, 4.0, 0.0]
    weight_B = mixer.weigh(signals([[1.0, float("nan")], [3.0, 1.0]], [0, 1]))
    assert weight_B.tolist() == [0.5, 0.5]
    assert torch.equal(mixer.weight_S, before[0])
    assert torch.equal(mixer.gradient_SK, before[1])
    assert mixer.square_S.tolist() == [0.0, 4.0, 0.0]


def test_plan_and_refusals():
    lab = Facts({"a": 9, "b": 5, "c": 1})
    mixer = DoGEProxy(targets=["b"])
    assert mixer.plan(lab).weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert mixer.weight_S.tolist() == [0.5, 0.0, 0.5]
    with pytest.raises(ConfigError, match='targets names "bb", which is not a source'):
        DoGEProxy(targets=["bb"]).plan(lab)
    with pytest.raises(ConfigError, match="leaves no source to train on"):
        DoGEProxy(targets=["a", "b", "c"]).plan(lab)
    with pytest.raises(ConfigError, match="must list the sources' names, got 'b'"):
        DoGEProxy(targets="b")
    with pytest.raises(ConfigError, match=r"fill Signals\.lr"):
        DoGEProxy(sources=NAMES).weigh(replace(signals([[1.0]], [0]), lr=None))
    mixer = DoGEProxy(sources=NAMES)
    mixer.weigh(signals([[1.0]], [0]))
    with pytest.raises(ConfigError, match=r"sketch\.refresh=never"):
        mixer.weigh(replace(signals([[1.0]], [0], 1), projection=1))
    with pytest.raises(ConfigError, match=r"sketch\.refresh=step with doge-proxy: .*=never"):
        mixer.refresh("step")
    with pytest.raises(ConfigError, match=r"mixer\.alignment='held_out'"):
        DoGEProxy(alignment="held_out")
