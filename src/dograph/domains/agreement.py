"""How far the domains that the model perceives agree with the sources that people named.

Shapes: B samples, M domains, S sources.
"""

import torch
from torch import Tensor


def agreement(
    label_B: Tensor, source_B: Tensor, num_domains: int, num_sources: int
) -> tuple[Tensor, Tensor]:
    """Normalised mutual information and purity of domains against sources, both in [0, 1].

    NMI = 2 I(domain; source) / (H(domain) + H(source)), taken as 1 where neither side is split.
    Purity is the share of samples whose source is the commonest in their domain.
    """
    domain_BM = label_B[:, None] == torch.arange(num_domains, device=label_B.device)
    origin_BS = source_B[:, None] == torch.arange(num_sources, device=source_B.device)
    share_MS = domain_BM.double().T @ origin_BS.double() / len(label_B)
    share_M, share_S = share_MS.sum(dim=1), share_MS.sum(dim=0)
    apart_MS = share_M[:, None] * share_S
    ratio_MS = share_MS / torch.where(apart_MS == 0, 1.0, apart_MS)
    information = torch.special.xlogy(share_MS, ratio_MS).sum()
    entropy = -(torch.xlogy(share_M, share_M).sum() + torch.xlogy(share_S, share_S).sum())
    unsplit = ((share_M > 0).sum() == 1) & ((share_S > 0).sum() == 1)
    informed = information > torch.finfo(torch.float64).eps
    nmi = torch.where(informed, 2 * information / torch.where(entropy > 0, entropy, 1.0), 0.0)
    return torch.where(unsplit, 1.0, nmi), share_MS.amax(dim=1).sum()
