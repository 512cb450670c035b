"""What a plan from a table says against itself."""

import numpy as np
import pytest

from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.tables import MixtureTable

pytestmark = pytest.mark.usefixtures("shared_fits")


@pytest.mark.slow
def test_a_note_of_several_laws_is_said_once_with_their_targets():
    """Two runs fewer than parameters for both targets, and one of them does not depend on them."""
    draws = np.random.default_rng(0)
    weight_NS = draws.dirichlet(np.ones(5), 6)
    loss_NV = np.stack([2 + np.exp(-weight_NS[:, 0]), np.full(6, 2.5), 3 - weight_NS[:, 1]], axis=1)
    table = MixtureTable(
        list("vwxyz"), list("abc"), [f"r{n}" for n in range(6)], weight_NS, loss_NV
    )
    notes = propose_from_table("mixing-law", table, target="mean").findings["notes"]
    few = [note for note in notes if "free parameters" in note]
    assert len(few) == 1
    assert few[0].startswith("law of a, c: 6 runs for 6 free parameters")
    assert any(note.startswith("law of b: all losses are equal") for note in notes)


def _table(losses_of=("a", "b"), shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    weight_NS = rng.dirichlet(np.ones(2), 12)
    loss_NV = 2 + np.exp(-weight_NS) + shift
    return MixtureTable(
        ["a", "b"], list(losses_of), [f"r{n}" for n in range(12)], weight_NS, loss_NV
    )


def test_scores_are_not_losses():
    notes = propose_from_table(
        "mixing-law", _table(["arc_easy_acc_norm", "face"]), target="face"
    ).findings["notes"]
    (note,) = [note for note in notes if "higher is better" in note]
    assert "arc_easy_acc_norm;" in note
