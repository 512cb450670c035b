"""L_opt: from what is known of the domains to their weights, on the simplex and free of scale.

Shapes: M domains. G is the Gram of the domains' mean gradients g_j, s the mean squared gradient
norm over all samples. Empty domains get weight 0. The four objectives of the paper
(App. Objectives) keep their names; `Precision` is ours.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Options
from dograph.domains.simplex import MOST_DOMAINS, relative_gap, solve_qp
from dograph.errors import ConfigError, did_you_mean
from dograph.kernels import usable
from dograph.types import Domains


@runtime_checkable
class Objective(Protocol):
    """Anything that turns domains into weights and can say how well it did."""

    def __call__(self, domains: Domains) -> Tensor:
        """Weights (M,): >= 0, summing to 1, 0 on empty domains."""
        ...

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        """How far `weight_M` is from what this objective asks for: (), 0 where it is met.

        A function of its arguments alone: it is asked later than `__call__`, and on the CPU.
        """
        ...


class _Named(Options):
    """What objectives of a name have in common."""

    prefix: ClassVar[str] = "objective."
    rule: ClassVar[str]  # what it weighs by, as far as a table of domains shows it


class _Convex(_Named):
    """Objectives that are a convex quadratic w'Qw + b'w; the residual is its relative gap."""

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        """Q and b."""
        raise NotImplementedError

    def __call__(self, domains: Domains) -> Tensor:
        quadratic_MM, linear_M = self.problem(domains)
        return solve_qp(quadratic_MM, linear_M, domains.present_M).to(domains.gram_MM.dtype)

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        quadratic_MM, linear_M = self.problem(domains)
        return relative_gap(quadratic_MM, linear_M, weight_M, domains.present_M)


class _ClosedForm(_Named):
    """Objectives with a formula; the residual is how far weights are from it."""

    def __call__(self, domains: Domains) -> Tensor:
        raise NotImplementedError

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        return (weight_M - self(domains)).abs().amax()


class Variance(_Convex):
    """Small variance of gradient norms and a short update: Var_j[||g_j||] + lambda w'Gw / s.

    As printed the variance does not depend on w, so `variance="printed"` minimises the norm of the
    update alone, whatever lambda. `"weighted"` is our repaired reading, Var_j[||w_j g_j||] / s over
    the m' present domains: w'D (I/m' - 11'/m'^2) D w with D = diag(||g_j||) / sqrt(s).
    """

    rule: ClassVar[str] = "the weights that make the update shortest"

    lambda_: float = Field(1.0, gt=0)
    variance: Literal["printed", "weighted"] = "printed"

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        gram_MM = domains.gram_MM.double() / _unit(domains)
        quadratic_MM = self.lambda_ * gram_MM
        if self.variance == "weighted":
            present_M = domains.present_M.double()
            num_present = present_M.sum().clamp_min(1)
            norm_M = gram_MM.diagonal().clamp_min(0).sqrt() * present_M
            centred_MM = torch.diag(norm_M.square()) - torch.outer(norm_M, norm_M) / num_present
            quadratic_MM = quadratic_MM + centred_MM / num_present
        return quadratic_MM, torch.zeros_like(gram_MM[0])


class Robust(_ClosedForm):
    """Heed the hardest domains: w_j ~ exp(||g_j|| / tau), norms in units of their mean.

    The closed form that the paper states for tau log sum_j exp(||g_j|| / tau); it leaves the unit
    open, and the mean over the present domains makes tau free of scale.
    """

    rule: ClassVar[str] = "weight ~ exp(mean norm / tau), norms in units of their average"

    tau: float = Field(1.0, gt=0)

    def __call__(self, domains: Domains) -> Tensor:
        present_M = domains.present_M
        norm_M = torch.where(present_M, domains.gram_MM.double().diagonal().clamp_min(0).sqrt(), 0)
        mean = norm_M.sum() / present_M.sum().clamp_min(1)
        logit_M = norm_M / torch.where(mean == 0, 1.0, mean) / self.tau
        weight_M = torch.where(present_M, logit_M, -torch.inf).softmax(dim=0)
        return torch.where(present_M, weight_M, 0.0).to(domains.gram_MM.dtype)


class Alignment(_ClosedForm):
    """Weigh domains by agreement with the update: w_j ~ max(cos(g_j, sum_l w_l g_l), 0).

    The paper's fixed-point iteration from equal weights. The printed loss itself is least at every
    vertex (a domain agrees with itself), so it is not minimised. Where no domain agrees, or the
    update vanishes, the weights stay where they were. The residual is the largest change that one
    more iteration makes.
    """

    rule: ClassVar[str] = "weight ~ agreement of the domain's mean gradient with the update"

    iterations: int = Field(20, ge=1)

    def __call__(self, domains: Domains) -> Tensor:
        present_M = domains.present_M.double()
        weight_M = present_M / present_M.sum().clamp_min(1)
        return self._iterated(domains, weight_M, self.iterations).to(domains.gram_MM.dtype)

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        return (self._iterated(domains, weight_M.double(), 1) - weight_M).abs().amax()

    def _iterated(self, domains: Domains, weight_M: Tensor, iterations: int) -> Tensor:
        """An update within rounding of zero agrees with nothing. On a GPU this is one kernel."""
        if len(weight_M) <= MOST_DOMAINS and usable(weight_M):
            from dograph.kernels.objectives import aligned_by_kernel

            return aligned_by_kernel(domains.gram_MM, domains.present_M, weight_M, iterations)
        gram_MM = domains.gram_MM.double()
        norm_M = gram_MM.diagonal().clamp_min(0).sqrt() * domains.present_M
        unit_MM = gram_MM / norm_M.masked_fill(norm_M == 0, torch.inf)[:, None]
        rounding = torch.finfo(domains.gram_MM.dtype).eps * len(norm_M) * norm_M.square().amax()
        for _ in range(iterations):
            along_M = unit_MM @ weight_M  # cosines times the length of the update
            square = (weight_M * norm_M) @ along_M
            agrees_M = along_M.clamp_min(0) * (square > rounding)
            total = agrees_M.sum()
            weight_M = torch.where(total > 0, agrees_M / total, weight_M)
        return weight_M.masked_fill(~torch.isfinite(rounding), torch.nan)


class Uncertainty(_Convex):
    """A short update from steady domains: w'Gw / s + beta sum_j sigma_j^2 w_j.

    `sigma="printed"` is the paper's sigma_j^2, the variance of squared distances to the domain's
    mean, a fourth power of gradients and therefore over s^2. `"mean"` is our repaired reading, the
    mean squared distance over s. A domain of one sample has sigma 0; `sigma_floor` is the least
    scaled sigma^2 that any domain is given.
    """

    rule: ClassVar[str] = "a short update from domains of little spread"

    beta: float = Field(1.0, ge=0)
    sigma: Literal["printed", "mean"] = "printed"
    sigma_floor: float = Field(0.0, ge=0)

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        unit = _unit(domains)
        if self.sigma == "printed":
            sigma_M = domains.spread_variance_M.double() / unit.square()
        else:
            sigma_M = domains.spread_M.double() / unit
        return domains.gram_MM.double() / unit, self.beta * sigma_M.clamp_min(self.sigma_floor)


class Precision(_ClosedForm):
    """Trust steady domains and spend few effective samples: w_j ~ share_j s_j^-q.

    s_j^2 is the mean squared gradient norm in domain j. Ours, not the paper's. q = 0 counts all
    samples alike, q = 2 is inverse variance. A domain without any gradient has no s_j to go by and
    counts as an average one.
    """

    rule: ClassVar[str] = "weight ~ share x (gradient norm)^-q"

    q: float = 1.0

    def __call__(self, domains: Domains) -> Tensor:
        absent_M, share_M = ~domains.present_M, domains.share_M.double()
        ratio_M = domains.square_M.double() / _unit(domains)
        ratio_M = ratio_M.masked_fill(ratio_M <= torch.finfo(torch.float32).eps, 1)
        power_M = (-self.q / 2 * ratio_M.log()).masked_fill(absent_M, -torch.inf)
        weight_M = share_M * (power_M - power_M.amax()).exp()
        weight_M = (weight_M / weight_M.sum()).masked_fill(absent_M, 0)
        return weight_M.to(domains.gram_MM.dtype)


OBJECTIVES: dict[str, type[_Convex] | type[_ClosedForm]] = {
    "variance": Variance,
    "robust": Robust,
    "alignment": Alignment,
    "uncertainty": Uncertainty,
    "precision": Precision,
}


def build_objective(spec: str | Mapping[str, object] | Objective) -> Objective:
    """An objective by name, by `{"name": ..., option: value}`, or one already made."""
    if isinstance(spec, Objective) and not isinstance(spec, type):
        return spec
    options = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
        raise ConfigError(
            f"objective must be a name, a mapping with a name, or an object with __call__ and "
            f"residual; got {spec!r}; names: {', '.join(OBJECTIVES)}"
        )
    name = str(options["name"])
    if name not in OBJECTIVES:
        raise ConfigError(f'objective="{name}" is not known; {did_you_mean(name, OBJECTIVES)}')
    gone = (("name", name), ("gamma", 0))  # runs of before may name a gone option at its default
    given: dict[str, Any] = dict(option for option in options.items() if option not in gone)
    return OBJECTIVES[name](**given)


def _unit(domains: Domains) -> Tensor:
    """The unit s in float64, or 1 where every gradient is zero."""
    scale = domains.scale.double()
    return scale.masked_fill(scale == 0, 1)
