"""check_objective finds what is wrong with somebody's own objective."""

import pytest
import torch

from dograph.testing import check_objective


class Equal:
    """Equal weights over the present domains."""

    def __call__(self, domains):
        return domains.present_M / domains.present_M.sum()

    def residual(self, domains, weight_M):
        return (weight_M - self(domains)).abs().amax()


class NotScaleFree(Equal):
    def __call__(self, domains):
        return torch.where(domains.present_M, domains.square_M, -torch.inf).softmax(0)


class FavoursLabels(Equal):
    def __call__(self, domains):
        weight_M = domains.present_M * torch.arange(1.0, len(domains.share_M) + 1)
        return weight_M / weight_M.sum()


class WeighsTheEmpty(Equal):
    def __call__(self, domains):
        return torch.full_like(domains.share_M, 1 / len(domains.share_M))


class CountsTheEmpty(Equal):
    def __call__(self, domains):
        weight_M = domains.share_M ** (1 / len(domains.share_M))
        return weight_M / weight_M.sum()


class TakesTheFirst(Equal):
    def __call__(self, domains):
        return torch.eye(len(domains.share_M))[domains.square_M.argmax()]


class DividesByZero(Equal):
    def __call__(self, domains):
        return domains.square_M / domains.square_M.sum()


class SumsToTwo(Equal):
    def __call__(self, domains):
        return 2 * super().__call__(domains)


class NoResidual(Equal):
    def residual(self, domains, weight_M):
        return weight_M - self(domains)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NotScaleFree, "ten times as large"),
        (FavoursLabels, "when these change numbers"),
        (WeighsTheEmpty, "empty domains must get weight 0"),
        (CountsTheEmpty, "not change when there are empty domains"),
        (TakesTheFirst, "must get the same weight"),
        (DividesByZero, "must be finite"),
        (SumsToTwo, "sum to 1"),
        (NoResidual, "must be a scalar"),
    ],
)
def test_the_contract_catches_broken_objectives(broken, message):
    check_objective(Equal())
    with pytest.raises(AssertionError, match=message):
        check_objective(broken())
