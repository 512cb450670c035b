"""Checks for your own mixers, objectives and rules of layers."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from dograph.domains.objectives import Objective
from dograph.domains.partition import partition
from dograph.mixers.base import SIGNALS, Lab, Mixer, Proxy, ProxyResult
from dograph.mixers.registry import build_mixer
from dograph.sketch.cover import GivenRule, LayerRule, compare_with_autograd
from dograph.types import Domains, Mixture, Signals

STEPS, SIZE = 14, 16  # of the made-up run before it is resumed, and as many after


def check_mixer(
    mixer: Mixer, *, sources: Sequence[str] = ("a", "b", "c"), sizes: tuple[int, ...] = (1, 2, 16)
) -> None:
    """Assert what every mixer must do, on copies of `mixer`, in a made-up run over `sources`.

    - `plan` and `remix` return mixtures of sources, or strata, of the corpus.
    - `weigh` returns weights on the simplex, deterministic, independent of the order of samples.
    - `weigh_lagged`, unless it is refused, returns finite weights; `graph` and `locate` know
      domains at the same time.
    - A resumed run continues unchanged: `state_dict` has tensors and JSON values, and a new mixer
      that loads it, without a plan, has the same weights and mixtures.
    """
    assert mixer.needs <= SIGNALS, f"needs {mixer.needs - SIGNALS}, which no step computes"
    lab, running = TinyLab(sources), copy.deepcopy(mixer)
    _require_known(running.plan(lab), lab, "plan")
    for step, mixture in running.schedule().items():
        _require_known(mixture, lab, f"the schedule from step {step}")
    for size in sizes:
        _require_weights(running, random_signals(running, size, len(sources), step=lab.steps))
    for step in range(STEPS):
        _next_step(running, lab, step)
    for size in sizes:
        _require_weights(running, random_signals(running, size, len(sources), step=STEPS))
    _require_capabilities(copy.deepcopy(running), lab)
    resumed = copy.deepcopy(mixer)
    resumed.load_state_dict(_stored(running.state_dict()))
    for step in range(STEPS, 2 * STEPS):
        weight_B, remixed = _next_step(running, lab, step)
        again_B, remixed_again = _next_step(resumed, lab, step)
        assert torch.equal(weight_B, again_B), (
            f"a resumed run has other weights {step - STEPS} steps later: state_dict must hold all "
            f"state of weigh, plan and remix, got {sorted(running.state_dict())}"
        )
        assert remixed == remixed_again, (
            f"a resumed run has another mixture {step - STEPS} steps later: {remixed_again} "
            f"instead of {remixed}; state_dict must hold all state of remix"
        )


def _next_step(mixer: Mixer, lab: "TinyLab", step: int) -> tuple[Tensor, Mixture | None]:
    """One step of a run: its weights, and the mixture after it."""
    signals = random_signals(mixer, SIZE, len(lab.tokens), step=step)
    weight_B, remixed = mixer.weigh(signals), mixer.remix(signals)
    if remixed is not None:
        _require_known(remixed, lab, f"remix after step {step}")
    return weight_B, remixed


def _require_weights(mixer: Mixer, signals: Signals) -> None:
    size = signals.num_samples
    weight_B = copy.deepcopy(mixer).weigh(signals)
    _require_simplex(weight_B, (size,))
    assert torch.equal(weight_B, copy.deepcopy(mixer).weigh(signals)), "weights must repeat"
    order_B = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    known = ((field.name, getattr(signals, field.name)) for field in fields(signals))
    moved: dict[str, Any] = {name: v[order_B] for name, v in known if isinstance(v, Tensor)}
    moved_B = copy.deepcopy(mixer).weigh(replace(signals, **moved))
    assert torch.allclose(moved_B, weight_B[order_B], atol=1e-6), (
        "weights must follow their samples when their order changes"
    )


def _require_simplex(weight: Tensor, shape: tuple[int, ...]) -> None:
    assert weight.shape == shape, f"weights have shape {tuple(weight.shape)}, not {shape}"
    assert bool((weight >= 0).all()), f"weights must be >= 0, got {weight.tolist()}"
    total = float(weight.sum())
    assert abs(total - 1) < 1e-5, f"weights must sum to 1, got {total}"
    assert not weight.requires_grad, "no gradient may flow through the weights"


def _require_capabilities(mixer: Mixer, lab: "TinyLab") -> None:
    """Assert that a run can use lagged weights and domains."""
    signals = random_signals(mixer, SIZE, len(lab.tokens), step=STEPS)
    if mixer.refuses_lagged() is None:
        weight_b = mixer.weigh_lagged(signals, 2 * SIZE)
        sound = (weight_b >= 0).all() & weight_b.isfinite().all()
        usable = weight_b.shape == (SIZE,) and bool(sound)
        assert usable, f"lagged weights must be {SIZE} finite numbers >= 0, got {weight_b.tolist()}"
    if mixer.has_domains and signals.sketch_BK is not None:
        located = mixer.locate(signals.sketch_BK, STEPS)
        if mixer.graph(list(lab.tokens), STEPS) is not None:
            assert located is not None, "locate knows no domains, but graph does"
            assert located[0].shape == (SIZE,), "locate must give one domain a sample"


def _require_known(mixture: Mixture, lab: Lab, where: str) -> None:
    """Assert that a run can draw from the mixture."""
    assert isinstance(mixture, Mixture), f"{where} must give a dograph.Mixture, got {mixture!r}"
    unknown = sorted(set(mixture.weights) - set(lab.tokens) - set(lab.strata))
    assert not unknown, (
        f"{where} draws from {unknown}; there are the sources {list(lab.tokens)} and the strata "
        f"{list(lab.strata)}. Pass the sources that this mixer names to check_mixer"
    )


def _stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a checkpoint."""
    values = {name: v for name, v in state.items() if not isinstance(v, Tensor)}
    try:
        back = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"state_dict must hold tensors and JSON values only: {error}; got {values}"
        ) from error
    return {**back, **{n: v.detach().cpu().clone() for n, v in state.items() if n not in values}}


class TinyLab:
    """A lab over made-up sources, for plans; the first source has two strata.

    Proxies are not trained. Their mixers see made-up steps, and the loss of a source with weight w,
    of a model with N parameters after D tokens, is 2 + exp(-w) + (D / 1e5)^-0.5 + (N / 1e5)^-0.3.
    """

    steps, proxy_steps, budget, parameters = 40, 20, 4_000_000, 100_000_000

    def __init__(self, sources: Sequence[str]) -> None:
        self.tokens: Mapping[str, int] = {
            name: 1_000_000 * (i + 1) for i, name in enumerate(sources)
        }
        first, *others = self.tokens
        halves = dict.fromkeys((f"{first}/0", f"{first}/1"), self.tokens[first] // 2)
        rest = {name: self.tokens[name] for name in others}
        self.strata: Mapping[str, int] = halves | rest
        self.scores: Mapping[str, float] = {name: 1.0 - i for i, name in enumerate(self.strata)}
        self._presets: list[Any] = [None]

    def train(self, proxies: Sequence[Proxy]) -> list[ProxyResult]:
        results, tokens = [], 1_000_000
        for proxy in proxies:
            options = dict(proxy.mixer)
            mixer = build_mixer(options.pop("name"), options)
            drawn = mixer.plan(self)
            for step in range(STEPS if mixer.needs else 0):
                _next_step(mixer, self, step)
            preset = proxy.settings.get("model", {}).get("preset")
            if preset not in self._presets:
                self._presets.append(preset)
            parameters, curve = 100_000 * 4 ** self._presets.index(preset), []
            for step in range(1, self.proxy_steps + 1):
                seen = tokens * step / self.proxy_steps
                common = 2 + (seen / 1e5) ** -0.5 + (parameters / 1e5) ** -0.3
                weight_of = {name: drawn.weights.get(name, 0.0) for name in self.tokens}
                curve.append((step, {name: common + math.exp(-w) for name, w in weight_of.items()}))
            stored = _stored(mixer.state_dict())
            state = {n: v.tolist() if isinstance(v, Tensor) else v for n, v in stored.items()}
            known = (state, f"{proxy.label}/model", parameters, tokens)
            results.append(ProxyResult(curve[-1][1], curve, *known))
        return results


def check_objective(objective: Objective, *, num_domains: int = 5, tolerance: float = 1e-4) -> None:
    """Assert that an objective's weights are on the simplex and depend on gradients only."""
    for seed in range(3):
        sketch_BK, label_B = random_domains(seed, num_domains)
        weight_M = _weights(objective, partition(sketch_BK, label_B, num_domains))
        order_M = torch.randperm(num_domains, generator=torch.Generator().manual_seed(seed))
        larger = partition(10 * sketch_BK, label_B, num_domains)
        moved = partition(sketch_BK, order_M[label_B], num_domains)
        gappy = partition(sketch_BK, 2 * label_B, 2 * num_domains)
        for changed_M, text in (
            (_weights(objective, larger), "not change when all gradients are ten times as large"),
            (_weights(objective, moved)[order_M], "follow their domains when these change numbers"),
            (_weights(objective, gappy)[::2], "not change when there are empty domains"),
        ):
            assert torch.allclose(changed_M, weight_M, atol=tolerance), (
                f"weights must {text}: {weight_M.tolist()} became {changed_M.tolist()}"
            )
        twin_BK, twin_B = sketch_BK.repeat(2, 1), torch.cat((label_B, label_B + num_domains))
        twin_M = _weights(objective, partition(twin_BK, twin_B, 2 * num_domains))
        assert torch.allclose(twin_M[:num_domains], twin_M[num_domains:], atol=tolerance), (
            f"domains with the same samples must get the same weight, got {twin_M.tolist()}"
        )
        _weights(objective, partition(sketch_BK, torch.zeros_like(label_B), 1))
        _weights(objective, partition(0 * sketch_BK, label_B, num_domains))


def check_rule(rule: LayerRule, module: nn.Module, value: Tensor) -> None:
    """Assert that a rule's per-sample gradients are those of autograd, on random parameters.

    `value` is an input of the layer, samples on axis 0.
    """
    names = {name: name for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    assert names, f"{type(module).__name__} has no trainable parameter of its own"
    given = GivenRule("layer", module, names, rule=rule)
    for name, (got_BF, expected_BF) in compare_with_autograd(given, value).items():
        assert got_BF.shape == expected_BF.shape, (
            f"the gradients of {name} have {tuple(got_BF.shape)} numbers, samples first, expected "
            f"{tuple(expected_BF.shape)}"
        )
        error = float((got_BF - expected_BF).norm() / expected_BF.norm())
        assert error < 1e-4, f"the gradient of {name} is not that of autograd: {error:.2g} of it"


def random_domains(seed: int, num_domains: int) -> tuple[Tensor, Tensor]:
    """Made-up sketches and labels: domains of several sizes, one of a single sample."""
    generator = torch.Generator().manual_seed(seed)
    label_B = torch.cat([torch.full((1 + 2 * j,), j) for j in range(num_domains)])
    centre_MK = torch.randn(num_domains, 32, generator=generator) + 0.5
    length_M = torch.rand(num_domains, generator=generator) + 0.5
    noise_BK = torch.randn(len(label_B), 32, generator=generator)
    return length_M[label_B, None] * (centre_MK[label_B] + noise_BK), label_B


def _weights(objective: Objective, domains: Domains) -> Tensor:
    """An objective's weights; asserts that they are on the simplex and the residual is finite."""
    weight_M = objective(domains)
    assert bool(torch.isfinite(weight_M).all()), f"weights must be finite, got {weight_M.tolist()}"
    _require_simplex(weight_M, tuple(domains.share_M.shape))
    assert bool((weight_M[~domains.present_M] == 0).all()), (
        f"empty domains must get weight 0, got {weight_M.tolist()}"
    )
    residual = objective.residual(domains, weight_M)
    assert residual.shape == (), f"the residual must be a scalar, got shape {residual.shape}"
    assert bool(torch.isfinite(residual) & (residual >= 0)), (
        f"the residual must be finite and >= 0, got {float(residual)}"
    )
    return weight_M


def random_signals(mixer: Mixer, size: int, num_sources: int, *, step: int = 0) -> Signals:
    """Made-up signals of the kind that a mixer needs; strata are those of a `TinyLab`."""
    generator = torch.Generator().manual_seed(size + 1000 * step)

    def fill(name: str, value: Tensor) -> Tensor | None:
        return value if name in mixer.needs else None

    loss_B = torch.rand(size, generator=generator) + 2
    reference_B = torch.rand(size, generator=generator) + 2
    source_B = torch.randint(num_sources, (size,), generator=generator)
    sketch_BK = torch.randn(size, 32, generator=generator)
    half_B = torch.randint(2, (size,), generator=generator)
    return Signals(
        step=step,
        num_samples=size,
        loss_B=fill("loss", loss_B),
        reference_loss_B=fill("reference_loss", reference_B),
        # tokens differ from their mean, so clipped one by one they exceed by more
        excess_loss_B=fill("reference_loss", (loss_B - reference_B).clamp_min(0) + 0.1),
        source_B=fill("source", source_B),
        stratum_B=fill("sketch", torch.where(source_B == 0, half_B, source_B + 1)),
        sketch_BK=fill("sketch", sketch_BK),
        lr=1e-3,
        vocab_size=100,
    )
