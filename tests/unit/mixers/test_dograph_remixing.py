"""DoGraph whose weights are realised by sampling: what the objective and the loss go by.

Every stratum is one domain of these batches, so shares of domains are known by hand.

Shapes: B samples, M domains.
"""

from dataclasses import replace

import torch

from dograph.mixers.dograph import DoGraph
from dograph_batches import SIZE, UNEVEN, Lab, batch

TOKENS = {"a": 100, "b": 300, "c": 400, "d": 200}


class Spying:
    """An objective that asks for every domain alike and remembers which shares it was shown."""

    def __call__(self, domains):
        self.share_M = domains.share_M
        return domains.present_M / domains.present_M.sum()

    def residual(self, domains, weight_M):
        return torch.zeros(())


def opened(**options):
    given = {
        "num_domains": 4,
        "apply_weights_to": "sampling",
        "remix_every": 10,
        "warmup_steps": 0,
        **options,
    }
    mixer = DoGraph("safe", **given)
    mixer.plan(Lab(TOKENS))
    return mixer


def seen(mixer, steps, source_B=UNEVEN):
    """Show it so many batches; return the domain of each source."""
    for step in range(steps):
        mixer.weigh(batch(step, source_B=source_B))
    return [int(mixer.domains.label_B[source_B == s].unique()) for s in range(4)]


def test_the_objective_sees_shares_as_the_first_mixture_gives_them():
    """Batches hold 10, 7, 5 and 2 samples of the sources, the corpus other shares of them."""
    objective = Spying()
    domain_of = seen(opened(objective=objective), 16)
    torch.testing.assert_close(objective.share_M[domain_of], torch.tensor([0.1, 0.3, 0.4, 0.2]))


def test_the_warm_up_changes_neither_the_mixture_nor_a_micro_batch():
    sampled, weighed = opened(warmup_steps=20), opened(warmup_steps=20, apply_weights_to="loss")
    seen(sampled, 16)
    seen(weighed, 16)
    assert sampled.remix(replace(batch(19), step=19)) is None
    assert sampled.remix(replace(batch(29), step=29)) is not None
    equal_B = torch.full((SIZE,), 1 / SIZE)
    torch.testing.assert_close(weighed.weigh_lagged(batch(19), SIZE), equal_B)
    weight_B = weighed.weigh_lagged(batch(20), SIZE)
    assert float(weight_B.max() - weight_B.min()) > 0.01 / SIZE


def test_counts_of_domains_end_with_their_projection():
    mixer = opened()
    seen(mixer, 100)
    assert float(mixer.remixing.count_MS.sum()) > 10 * SIZE
    mixer.weigh(batch(100, projection=100))
    assert mixer.remix(batch(109, projection=100)) is None
    assert mixer.remixing.count_MS is None
