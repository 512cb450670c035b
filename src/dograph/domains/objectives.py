"""L_opt: from the statistics of the domains to their weights, on the simplex and free of scale.

First the objectives, then the solver of the convex ones; nothing waits for the device.

Shapes: M domains. G is the Gram of the domains' mean gradients g_j, s the mean squared gradient
norm over all samples. Empty domains get weight 0. The paper (App. Objectives) has the first four;
`Precision` is ours. `graph_penalty` gamma > 0 adds gamma w'Lw, which makes the weights of
neighbors in the domain graph similar; the paper has 0.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Options
from dograph.domains.graph import adjacency, laplacian
from dograph.errors import ConfigError, require_known
from dograph.kernels import usable
from dograph.types import Domains

ITERATIONS = 24  # of the interior-point method: mostly 8 to 12, more where Q has a low rank
CENTRING = 0.05  # each step aims at this fraction of the present gap, or at the gap's square,
CONVERGED = 1e-13  # but not below this for each domain, in units of the largest curvature
TO_BOUNDARY = 0.005  # each step stops short of the nearest bound by this share of the way,
NEAREST = 1e-5  # or by the gap, but not by less than this: no weight may round to 0
OUT_OF_REACH = 8.0  # a slope so far above the least one that the domain's weight is 0
RIDGE = 1e-6  # added curvature: a Gram rounded to float32 is indefinite by nearly this much
NEGLIGIBLE = 1e-9  # a weight below this is a zero that the interior-point method came close to


@runtime_checkable
class Objective(Protocol):
    """Anything that turns domains into weights."""

    def __call__(self, domains: Domains) -> Tensor:
        """Weights (M,): >= 0, summing to 1, 0 on empty domains."""

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        """How far `weight_M` is from the optimum: (), 0 at the optimum.

        A function of its arguments only: it is called later than `__call__`, and on the CPU.
        """


class _Convex(Options):
    """Objectives that minimize a convex quadratic w'Qw + b'w; the residual is its relative gap."""

    prefix: ClassVar[str] = "objective."

    graph_penalty: float = Field(0.0, ge=0)

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        """Q and b, before the penalty."""
        raise NotImplementedError

    def __call__(self, domains: Domains) -> Tensor:
        quadratic_MM, linear_M = self._penalised(domains)
        return solve_qp(quadratic_MM, linear_M, domains.present_M).to(domains.gram_MM.dtype)

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        quadratic_MM, linear_M = self._penalised(domains)
        return relative_gap(quadratic_MM, linear_M, weight_M, domains.present_M)

    def _penalised(self, domains: Domains) -> tuple[Tensor, Tensor]:
        quadratic_MM, linear_M = self.problem(domains)
        if self.graph_penalty > 0:
            laplacian_MM = laplacian(adjacency(domains.gram_MM.double()))
            quadratic_MM = quadratic_MM + self.graph_penalty * laplacian_MM
        return quadratic_MM, linear_M


class _ClosedForm(_Convex):
    """Objectives with a formula w0; under a penalty, argmin ||w - w0||^2 + gamma w'Lw."""

    def formula(self, domains: Domains) -> Tensor:
        raise NotImplementedError

    def unsettled(self, domains: Domains, weight_M: Tensor) -> Tensor:
        """How far weights are from satisfying the formula."""
        return (weight_M - self.formula(domains)).abs().amax()

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        formula_M = self.formula(domains).double()
        return torch.diag(torch.ones_like(formula_M)), -2 * formula_M

    def __call__(self, domains: Domains) -> Tensor:
        return self.formula(domains) if self.graph_penalty == 0 else super().__call__(domains)

    def residual(self, domains: Domains, weight_M: Tensor) -> Tensor:
        if self.graph_penalty == 0:
            return self.unsettled(domains, weight_M)
        unsettled = self.unsettled(domains, self.formula(domains))
        return torch.maximum(super().residual(domains, weight_M), unsettled)


class Variance(_Convex):
    """Small variance of gradient norms and a short update: Var_j[||g_j||] + lambda w'Gw / s.

    In the paper the variance does not depend on w, so `variance="paper"` minimizes the norm of the
    update only, for any lambda. `"weighted"` is our correction, Var_j[||w_j g_j||] / s over the
    m' present domains: w'D (I/m' - 11'/m'^2) D w with D = diag(||g_j||) / sqrt(s).
    """

    lambda_: float = Field(1.0, gt=0)
    variance: Literal["paper", "weighted"] = "paper"

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
    """Weigh the hardest domains: w_j ~ exp(||g_j|| / tau), norms in units of their mean.

    The paper's closed form for tau log sum_j exp(||g_j|| / tau). It does not state a unit; the
    mean over the present domains makes tau free of scale.
    """

    tau: float = Field(1.0, gt=0)

    def formula(self, domains: Domains) -> Tensor:
        present_M = domains.present_M
        norm_M = torch.where(present_M, domains.gram_MM.double().diagonal().clamp_min(0).sqrt(), 0)
        mean = norm_M.sum() / present_M.sum().clamp_min(1)
        logit_M = norm_M / torch.where(mean == 0, 1.0, mean) / self.tau
        weight_M = torch.where(present_M, logit_M, -torch.inf).softmax(dim=0)
        return torch.where(present_M, weight_M, 0.0).to(domains.gram_MM.dtype)


class Alignment(_ClosedForm):
    """Weigh domains by agreement with the update: w_j ~ max(cos(g_j, sum_l w_l g_l), 0).

    The paper's fixed-point iteration from equal weights. Its loss is lowest at every vertex (a
    domain agrees with itself), so it is not minimized. If no domain agrees, or the update vanishes,
    the weights do not change. The residual is the largest change by one more iteration.
    """

    iterations: int = Field(20, ge=1)

    def formula(self, domains: Domains) -> Tensor:
        present_M = domains.present_M.double()
        weight_M = present_M / present_M.sum().clamp_min(1)
        return self._iterated(domains, weight_M, self.iterations).to(domains.gram_MM.dtype)

    def unsettled(self, domains: Domains, weight_M: Tensor) -> Tensor:
        return (self._iterated(domains, weight_M.double(), 1) - weight_M).abs().amax()

    def _iterated(self, domains: Domains, weight_M: Tensor, iterations: int) -> Tensor:
        """An update within rounding of zero agrees with nothing. On a GPU this is one kernel."""
        if usable(weight_M, num_domains=len(weight_M)):
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
    """A short update from domains of little spread: w'Gw / s + beta sum_j sigma_j^2 w_j.

    `sigma="paper"` is the variance of squared distances to the domain's mean, a fourth power of
    gradients and therefore over s^2. `"mean"` is our correction, the mean squared distance over s.
    A domain of one sample has sigma 0; `sigma_floor` is the lowest scaled sigma^2 of any domain.
    """

    beta: float = Field(1.0, ge=0)
    sigma: Literal["paper", "mean"] = "paper"
    sigma_floor: float = Field(0.0, ge=0)

    def problem(self, domains: Domains) -> tuple[Tensor, Tensor]:
        unit = _unit(domains)
        if self.sigma == "paper":
            sigma_M = domains.spread_variance_M.double() / unit.square()
        else:
            sigma_M = domains.spread_M.double() / unit
        return domains.gram_MM.double() / unit, self.beta * sigma_M.clamp_min(self.sigma_floor)


class Precision(_ClosedForm):
    """Less weight for domains with large gradients: w_j ~ share_j s_j^-q.

    s_j^2 is the mean squared gradient norm in domain j. Ours, not the paper's. q = 0 gives equal
    sample weights, q = 2 is inverse variance. A domain with zero gradients counts as an average
    one.
    """

    q: float = 1.0

    def formula(self, domains: Domains) -> Tensor:
        absent_M, share_M = ~domains.present_M, domains.share_M.double()
        ratio_M = domains.square_M.double() / _unit(domains)
        ratio_M = ratio_M.masked_fill(ratio_M <= torch.finfo(torch.float32).eps, 1)
        power_M = (-self.q / 2 * ratio_M.log()).masked_fill(absent_M, -torch.inf)
        weight_M = share_M * (power_M - power_M.amax()).exp()
        weight_M = (weight_M / weight_M.sum()).masked_fill(absent_M, 0)
        return weight_M.to(domains.gram_MM.dtype)


OBJECTIVES: dict[str, type[_Convex]] = {
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
    require_known(name, OBJECTIVES, f'objective="{name}" is not known')
    given: dict[str, Any] = {option: value for option, value in options.items() if option != "name"}
    return OBJECTIVES[name](**given)


def _unit(domains: Domains) -> Tensor:
    """The unit s in float64, or 1 where every gradient is zero."""
    scale = domains.scale.double()
    return scale.masked_fill(scale == 0, 1)


def solve_qp(quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor) -> Tensor:
    """Weights on the simplex that minimize w'Qw + b'w, exactly 0 where `present_M` is False.

    A primal-dual interior-point method in float64 that starts feasible on both sides, w = 1/m and
    y = min(gradient) - 1, so that w'z is the duality gap at every step. Q is positive semidefinite
    up to the rounding of float32. A small ridge makes the minimum unique (the weights nearest to
    equal ones) and leaves a relative gap of at most a quarter of the ridge. Without present domains
    all weights are 0; input that is not finite gives NaN. One kernel on a GPU.
    """
    if not usable(quadratic_MM, num_domains=len(linear_M)):
        return _solve_by_pytorch(quadratic_MM, linear_M, present_M)
    from dograph.kernels.simplex import solve_qp_by_kernel

    return solve_qp_by_kernel(
        *(quadratic_MM, linear_M, present_M),
        ITERATIONS=ITERATIONS,
        CENTRING=CENTRING,
        CONVERGED=CONVERGED,
        TO_BOUNDARY=TO_BOUNDARY,
        NEAREST=NEAREST,
        OUT_OF_REACH=OUT_OF_REACH,
        RIDGE=RIDGE,
        NEGLIGIBLE=NEGLIGIBLE,
    )


def _solve_by_pytorch(quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor) -> Tensor:
    # Hessian and slope in units of the largest entry of Q. A domain whose slope exceeds the least
    # one by more than four units has weight 0 in every minimum. Slopes are therefore cut at eight,
    # so that no outlier sets the precision of the rest, and an absent domain is one without
    # curvature and with that slope.
    q_MM, b_M, unit = _within(quadratic_MM, linear_M, present_M)
    slope_M = (b_M / unit).clamp_max(OUT_OF_REACH).masked_fill(~present_M, OUT_OF_REACH)
    curvature_MM = 2 * q_MM / unit
    identity_MM = torch.eye(len(slope_M), dtype=torch.float64, device=slope_M.device)
    curvature_MM = curvature_MM + RIDGE * identity_MM
    w_M = torch.full_like(slope_M, 1 / len(slope_M))
    gradient_M = curvature_MM @ w_M + slope_M
    pair_2M = torch.stack((w_M, gradient_M - gradient_M.amin() + 1))  # w and its multipliers z
    for _ in range(ITERATIONS):
        w_M, z_M = pair_2M
        product_M = w_M * z_M
        duality_gap = product_M.sum()
        aim = (duality_gap * (duality_gap.clamp_max(CENTRING) / len(w_M))).clamp_min(CONVERGED)
        root_M = (w_M / z_M).sqrt()
        system_MM = torch.addcmul(identity_MM, root_M[:, None] * root_M, curvature_MM)
        right_M2 = torch.stack(((aim - product_M) * product_M.rsqrt(), root_M), dim=1)
        solved_M2 = torch.linalg.solve_ex(system_MM, right_M2, check_errors=False).result
        toward_M, along_M = solved_2M = solved_M2.T * root_M
        total_2 = solved_2M.sum(dim=1)
        dy = total_2[0] / total_2[1]  # downwards: keeps the sum of w
        dw_M = toward_M - dy * along_M
        change_2M = torch.stack((dw_M, curvature_MM @ dw_M + dy))
        short = duality_gap.clamp(NEAREST, TO_BOUNDARY)
        length = 1 / (-(change_2M / pair_2M).amin() / (1 - short)).clamp_min(1)
        next_2M = pair_2M + length * change_2M
        better = next_2M.prod(dim=0).sum() < duality_gap
        better = better & (duality_gap > 2 * len(w_M) * CONVERGED)  # else all is rounding
        pair_2M = torch.where(better, next_2M, pair_2M)
    w_M = pair_2M[0].masked_fill(~present_M | (pair_2M[0] < NEGLIGIBLE), 0)
    weight_M = w_M / w_M.sum().clamp_min(torch.finfo(torch.float64).tiny)
    finite = torch.isfinite(curvature_MM.sum() + slope_M.sum())
    return weight_M.masked_fill(~finite, torch.nan).to(quadratic_MM.dtype)


def relative_gap(
    quadratic_MM: Tensor, linear_M: Tensor, weight_M: Tensor, present_M: Tensor
) -> Tensor:
    """How far weights are from the minimum of w'Qw + b'w, at most: w'g - min_j g_j, g = 2Qw + b.

    The Frank-Wolfe gap over the present domains, in units of the problem's largest curvature, the
    scale that `solve_qp` works in; 0 exactly at the minimum, where it is the Karush-Kuhn-Tucker
    residual.
    """
    q_MM, b_M, unit = _within(quadratic_MM, linear_M, present_M)
    gradient_M = 2 * q_MM @ weight_M.double() + b_M
    # a common offset of the slopes must not meet the rounding of the weights' sum
    least = gradient_M.masked_fill(~present_M, torch.inf).amin()
    above_M = (gradient_M - least).masked_fill(~present_M, 0)
    return weight_M.double() @ above_M / unit


def _within(
    quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Q and the slopes above the least one, over the present domains, and their unit."""
    absent_MM = ~(present_M[:, None] & present_M)
    q_MM = quadratic_MM.double()
    q_MM = ((q_MM + q_MM.T) / 2).masked_fill(absent_MM, 0)  # the symmetric part
    b_M = linear_M.double()
    b_M = (b_M - b_M.masked_fill(~present_M, torch.inf).amin()).masked_fill(~present_M, 0)
    unit = torch.maximum(q_MM.abs().amax(), 1e-12 * b_M.amax())
    return q_MM, b_M, unit.masked_fill(unit == 0, 1)
