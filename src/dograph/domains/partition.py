"""Domains of a batch: their statistics, the weights of their samples, agreement with sources.

Shapes: B samples, b those of a micro-batch, K sketch, M domains, S sources, X any of these. The
sample weights of a batch of n samples are >= 0 and sum to 1. Where an entry stands for all samples
of a domain, `share_X` is their part of the samples. Tables of counts: X tables, Y their sides.
"""

import torch
from torch import Tensor

from dograph.kernels import usable
from dograph.types import Domains

MOST_SHARED_OUT = 4096  # of the kernel in `share_out`, which is one program
NORM_FLOOR = 0.1  # gradient norms are at least this fraction of the batch's median


def partition(sketch_BK: Tensor, label_B: Tensor, num_domains: int) -> Domains:
    """Statistics of the domains `label_B` of a batch, from its Gram K = X X'.

    With Z the one-hot labels over the domains' sizes: G = Z'KZ, and the squared distance of
    sample i to its mean is K_ii - 2 (KZ)_ij + G_jj, there with K centred on the batch mean.
    `spread_variance_M` is the paper's sigma^2 (App. Objectives). Products are in float64, which a
    TF32 setting does not affect; results are float32 unless sketches are float64, but for
    `spread_variance_M`: a fourth power of gradients soon leaves the range of float32.
    """
    point_BK = sketch_BK.detach().double()
    member_BM = label_B[:, None] == torch.arange(num_domains, device=label_B.device)
    count_M = member_BM.sum(dim=0)
    mean_BM = member_BM / count_M.clamp_min(1).double()

    gram_BB = point_BK @ point_BK.T
    square_B = gram_BB.diagonal()
    apart_BB = centred(gram_BB, torch.ones_like(square_B))
    cross_BM = apart_BB @ mean_BM
    self_M = (mean_BM * cross_BM).sum(dim=0)
    cross_B = cross_BM.gather(1, label_B[:, None]).squeeze(1)
    distance_B = (apart_BB.diagonal() - 2 * cross_B + self_M[label_B]).clamp_min(0)
    spread_M = distance_B @ mean_BM
    variance_M = (distance_B - spread_M[label_B]).square() @ mean_BM
    dtype = torch.promote_types(sketch_BK.dtype, torch.float32)
    return Domains(
        label_B=label_B,
        share_M=(count_M.double() / len(label_B)).to(dtype),
        gram_MM=(mean_BM.T @ gram_BB @ mean_BM).to(dtype),
        square_M=(square_B @ mean_BM).to(dtype),
        spread_M=spread_M.to(dtype),
        spread_variance_M=variance_M,
        scale=square_B.mean().to(dtype),
    )


def sample_weights(domains: Domains, weight_M: Tensor) -> Tensor:
    """c_i = w_j / (n share_j) for sample i of domain j, divided by their sum.

    Equal weights if the sum is 0 or not finite.
    """
    each_M = torch.where(domains.present_M, weight_M / domains.share_M, 0.0)
    weight_B = each_M[domains.label_B]
    total = weight_B.sum()
    usable = (total > 0) & (total < torch.inf)
    return torch.where(usable, weight_B / total, 1 / len(weight_B))


def centred(gram_BB: Tensor, weight_B: Tensor) -> Tensor:
    """The Gram of samples minus the mean of those with weight 1; the other weights are 0."""
    share_B = weight_B / weight_B.sum().clamp_min(1)
    mean_B = gram_BB @ share_B
    return (gram_BB - mean_B[:, None]) - (mean_B - share_B @ mean_B)


def apply_limits(
    weight_B: Tensor,
    rho: float | None,
    norm_B: Tensor | None = None,
    source_B: Tensor | None = None,
) -> Tensor:
    """`divide_by_norms`, `keep_source_shares` and `limit_variance`, in this order.

    The first two if norms and sources are given. The last one moves weights towards equal ones, so
    it keeps the shares of sources.
    """
    if norm_B is not None:
        weight_B = divide_by_norms(weight_B, norm_B)
    if source_B is not None:
        weight_B = keep_source_shares(weight_B, source_B)
    return limit_variance(weight_B, rho)


def apply_limits_lagged(
    weight_M: Tensor,
    share_M: Tensor,
    label_b: Tensor,
    rho: float | None,
    norm_b: Tensor | None = None,
    *,
    size: int,
) -> Tensor:
    """`apply_limits` for a micro-batch of a batch of `size` samples, before the others are known.

    `weight_M`, the weight of one sample of each domain, is limited as if every domain had its
    share of the batch. So the effective fraction holds on average: a batch with more samples of a
    heavy domain than expected is below it.

    Norms are known of this micro-batch only: with `norm_b`, it keeps the total of the limited
    weights, divided among its samples by norms and within limits. Its sum of c^2 is at most
    b / (rho n^2), or that of b equal weights if they have more: a batch keeps its effective
    fraction if no micro-batch weighs more than 1 / sqrt(rho) times b / n.

    A batch in one micro-batch with the expected shares is weighed as by `apply_limits`.
    """
    limited_b = limit_variance(weight_M, rho, size=size, share_X=share_M)[label_b]
    if norm_b is None:
        return limited_b
    weight_b, total = weight_M[label_b], limited_b.double().sum()
    own = weight_b.sum()
    weight_b = torch.where(own > 0, weight_b * (total / own), limited_b)
    weight_b = divide_by_norms(weight_b, norm_b, total=total)
    return limit_variance(weight_b, rho, size=size, mean=total / len(weight_b))


def divide_by_norms(weight_B: Tensor, norm_B: Tensor, *, total: Tensor | None = None) -> Tensor:
    """Each sample counts by the direction of its gradient: c_i ~ weight_i / r_i.

    r_i is the gradient norm, at least a tenth of the batch's median. Norms without a positive
    finite median or total leave the weights unchanged. They sum to `total`, or to 1.
    """
    sorted_B = norm_B.double().sort().values
    size = len(sorted_B)
    least = NORM_FLOOR * (sorted_B[(size - 1) // 2] + sorted_B[size // 2]) / 2
    count_B = weight_B.double() / torch.maximum(norm_B.double(), least)
    count = count_B.sum()
    usable = (least > 0) & torch.isfinite(count) & (count > 0)
    part_B = count_B / count if total is None else count_B * (total / count)
    return torch.where(usable, part_B.to(weight_B.dtype), weight_B)


def keep_source_shares(weight_B: Tensor, source_B: Tensor) -> Tensor:
    """Every source weighs n_s / n, the share that was drawn, divided by the weights in it.

    So weights choose between samples of a source, and the mixture between sources. A source whose
    samples weigh 0 gets equal weights.
    """
    same_BB = (source_B[:, None] == source_B).double()
    drawn_B, own_B = same_BB.mean(dim=1), same_BB @ weight_B.double()
    times_B = drawn_B / torch.where(own_B > 0, own_B, 1.0)
    return torch.where(own_B > 0, weight_B * times_B, 1 / len(weight_B)).to(weight_B.dtype)


def limit_variance(
    weight_X: Tensor,
    rho: float | None,
    *,
    size: int | None = None,
    share_X: Tensor | None = None,
    mean: Tensor | None = None,
) -> Tensor:
    """Weights moved towards equal ones until 1 / (n sum c^2), the effective fraction, reaches rho.

    c' = u + t (c - u) with u = 1/n and t = min(1, sqrt((1/rho - 1) / (n sum c^2 - 1))). n is the
    number of weights, or `size`. Weights of a part of a batch have a `mean` u of their own, which
    leaves room for 1/rho - (n u)^2, or for none. Without rho there is no limit.
    """
    if rho is None:
        return weight_X
    size = len(weight_X) if size is None else size
    equal = 1 / size if mean is None else mean
    room = 1 / rho - 1 if mean is None else (1 / rho - (size * mean).square()).clamp_min(0)
    apart_X = weight_X.double() - equal
    share_X = torch.ones_like(apart_X) if share_X is None else share_X.double()
    # n sum c^2 - (n u)^2 without the cancellation
    excess = size**2 * (share_X * apart_X.square()).sum() / share_X.sum()
    pull = (room / torch.where(excess > 0, excess, 1.0)).sqrt().clamp_max(1)
    return (equal + torch.where(excess > 0, pull, 1.0) * apart_X).to(weight_X.dtype)


def all_finite(*weights: Tensor) -> Tensor:
    """Whether all numbers are finite (sums of weights do not overflow)."""
    total = torch.stack([weight.sum() for weight in weights]).sum()
    return total - total == 0


def share_out(
    domains: Domains, weight_M: Tensor, finite: Tensor, floor: float | None
) -> tuple[Tensor, Tensor]:
    """`sample_weights`, then `limit_variance`; and whether all of it was finite.

    Equal weights if `finite` is False or a weight is not finite. One kernel on a GPU.
    """
    if len(domains.label_B) <= MOST_SHARED_OUT and usable(weight_M):
        from dograph.kernels.sample_weights import share_out_by_kernel

        return share_out_by_kernel(domains, weight_M, finite, floor)
    weight_B = limit_variance(sample_weights(domains, weight_M), floor)
    finite = finite & all_finite(weight_M, weight_B)
    return torch.where(finite, weight_B, 1 / len(weight_B)), finite


def agreement(
    label_B: Tensor, source_B: Tensor, num_domains: int, num_sources: int
) -> tuple[Tensor, Tensor]:
    """Normalised mutual information and purity of domains against sources, both in [0, 1].

    NMI = 2 I(domain; source) / (H(domain) + H(source)), 1 if there is one domain and one source.
    Purity is the fraction of samples from the most frequent source of their domain.
    """
    domain_BM = label_B[:, None] == torch.arange(num_domains, device=label_B.device)
    origin_BS = source_B[:, None] == torch.arange(num_sources, device=source_B.device)
    nmi_1, purity_1 = agreement_of_counts((domain_BM.double().T @ origin_BS.double())[None])
    return nmi_1[0], purity_1[0]


def agreement_of_counts(count_XMS: Tensor) -> tuple[Tensor, Tensor]:
    """The same for several tables of counts at once, samples by domain and source."""
    share_XMS = count_XMS / count_XMS.sum(dim=(1, 2), keepdim=True)
    share_XM1, share_X1S = share_XMS.sum(dim=2, keepdim=True), share_XMS.sum(dim=1, keepdim=True)
    apart_XMS = share_XM1 * share_X1S
    ratio_XMS = share_XMS / apart_XMS.masked_fill(apart_XMS == 0, 1)
    information_X = torch.special.xlogy(share_XMS, ratio_XMS).sum(dim=(1, 2))
    sides_XY = torch.cat((share_XM1.flatten(1), share_X1S.flatten(1)), dim=1)
    entropy_X = -torch.special.xlogy(sides_XY, sides_XY).sum(dim=1)
    unsplit_X = (sides_XY > 0).sum(dim=1) == 2
    informed_X = information_X > torch.finfo(torch.float64).eps
    nmi_X = 2 * information_X / entropy_X.masked_fill(entropy_X <= 0, 1)
    nmi_X = nmi_X.masked_fill(~informed_X, 0).masked_fill(unsplit_X, 1)
    return nmi_X, share_XMS.amax(dim=2).sum(dim=1)
