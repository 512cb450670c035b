"""Fixtures that unit and integration tests share."""

import pytest


@pytest.fixture
def one_thread():
    """As the ranks of several processes compute, so that runs are compared bit by bit."""
    import torch  # takes seconds, and not every test needs it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
