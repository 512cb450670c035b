"""A step keeps what its metrics are made of; they are worked out when they are read."""

import copy

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from dograph.mixers.base import read_together
from dograph.mixers.dograph import DoGraph
from dograph.types import Signals


def reports(recipe, steps=14, read=lambda report: report):
    mixer = DoGraph(recipe, num_domains=4)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        source_B = torch.randint(3, (24,), generator=generator)
        sketch_BK = torch.randn(24, 40, generator=generator) + 2 * source_B[:, None]
        mixer.weigh(Signals(step=step, num_samples=24, source_B=source_B, sketch_BK=sketch_BK))
        found.append(read(mixer.report()))
    return found


@pytest.mark.parametrize("recipe", ["paper", "safe"])
def test_reports_read_late_and_together_say_what_each_says_at_once(recipe):
    late = reports(recipe)
    read_together(late)
    alone = reports(recipe, read=lambda report: copy.deepcopy(dict(report)))
    for one, other in zip(late, alone, strict=True):
        assert list(one) == list(other)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, msg=name)
    assert not torch.equal(late[-1]["domains/weight"], late[-2]["domains/weight"])


def test_other_reports_are_left_alone():
    plain = {"weights/max_relative_weight": torch.ones(())}
    read_together([plain, {}])
    assert list(plain) == ["weights/max_relative_weight"]


def test_what_was_read_is_not_held_on_the_device():
    report = reports("paper", steps=1)[0]
    assert report.held
    assert len(report) > 3
    assert not report.held


@pytest.mark.parametrize("recipe", ["paper", "safe"])
def test_every_metric_is_what_its_name_says(recipe):
    """From the labels, sketches and weights of each step, written out."""
    mixer = DoGraph(recipe, num_domains=4)
    labels, sources = [], []
    for step in range(26):
        generator = torch.Generator().manual_seed(step)
        source_B = torch.randint(3, (24,), generator=generator)
        sketch_BK = torch.randn(24, 40, generator=generator) + 0.5 * source_B[:, None]
        mixer.weigh(Signals(step=step, num_samples=24, source_B=source_B, sketch_BK=sketch_BK))
        if mixer.domains is not None:
            labels.append(mixer.domains.label_B)
            sources.append(source_B)
    report, domains, weight_M = mixer.report(), mixer.domains, mixer.weight_M
    order = sorted(range(4), key=lambda j: (-float(weight_M[j]), j))
    if recipe == "safe":  # domains with an identity keep their numbers
        order = list(range(4))
    else:
        assert order != [order.index(j) for j in range(4)], "an order that is its own inverse"
    domain_B = torch.tensor([order.index(int(label)) for label in labels[-1]])
    assert torch.equal(report["samples/domain"], domain_B)
    for place, j in enumerate(order):
        own_BK = sketch_BK[labels[-1] == j].double()
        assert int(report["domains/samples"][place]) == len(own_BK)
        assert report["domains/weight"][place] == weight_M[j]
        assert report["domains/share"][place] == domains.share_M[j]
        mean_norm, norm = domains.gram_MM[j, j].sqrt(), domains.square_M[j].sqrt()
        if recipe == "paper":
            mean_norm, norm = own_BK.mean(dim=0).norm(), own_BK.square().sum(dim=1).mean().sqrt()
        assert float(report["domains/mean_norm"][place]) == pytest.approx(float(mean_norm))
        assert float(report["domains/gradient_norm"][place]) == pytest.approx(float(norm))
    label_N, source_N = torch.cat(labels[-10:]), torch.cat(sources[-10:])
    nmi = normalized_mutual_info_score(source_N, label_N)
    batch_nmi = normalized_mutual_info_score(sources[-1], labels[-1])
    purity = sum(int(source_N[label_N == j].bincount().max()) for j in label_N.unique()) / 240
    assert float(report["domains/nmi"]) == pytest.approx(nmi)
    assert float(report["domains/batch_nmi"]) == pytest.approx(batch_nmi)
    assert float(report["domains/purity"]) == pytest.approx(purity)
    assert abs(nmi - batch_nmi) > 0.01
