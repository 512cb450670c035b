"""From labels to what the objectives know of each domain, and from domain weights to samples.

Shapes: B samples, K sketch, M domains.
"""

import torch
from torch import Tensor

from dograph.types import Domains


def partition(sketch_BK: Tensor, label_B: Tensor, num_domains: int) -> Domains:
    """Statistics of the domains that `label_B` makes of a batch, from its Gram K = X X' alone.

    With Z the one-hot labels over the domains' sizes: G = Z'KZ, and the squared distance of
    sample i to its mean is K_ii - 2 (KZ)_ij + G_jj, there with K centred on the batch mean.
    `spread_variance_M` is the paper's sigma^2 as printed (App. Objectives). Products are taken in
    float64, out of reach of a TF32 setting, and results are float32 unless sketches are float64.
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
        spread_variance_M=variance_M.to(dtype),
        scale=square_B.mean().to(dtype),
    )


def sample_weights(domains: Domains, weight_M: Tensor) -> Tensor:
    """What each sample counts: c_i = w_j / (n share_j) for its domain j, divided by their sum.

    Where the sum is 0 or not finite, all samples count alike.
    """
    each_M = torch.where(domains.present_M, weight_M / domains.share_M, 0.0)
    weight_B = each_M[domains.label_B]
    total = weight_B.sum()
    usable = (total > 0) & (total < torch.inf)
    return torch.where(usable, weight_B / total, 1 / len(weight_B))


def centred(gram_BB: Tensor, weight_B: Tensor) -> Tensor:
    """The Gram of samples less the mean of those with weight 1, the other weights being 0."""
    share_B = weight_B / weight_B.sum().clamp_min(1)
    mean_B = gram_BB @ share_B
    return (gram_BB - mean_B[:, None]) - (mean_B - share_B @ mean_B)
