"""How far the domains that the model perceives agree with the sources that people named.

Shapes: B samples, M domains, S sources, X tables, Y the sides of a table.
"""

from collections.abc import Sequence

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
    nmi_1, purity_1 = agreement_of_counts((domain_BM.double().T @ origin_BS.double())[None])
    return nmi_1[0], purity_1[0]


def agreement_of_counts(count_XMS: Tensor) -> tuple[Tensor, Tensor]:
    """The same for several tables at once, each of how many samples have a domain and a source."""
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


def agreement_of(
    batches: Sequence[tuple[Tensor, Tensor]], num_domains: int, num_sources: int
) -> tuple[Tensor, Tensor]:
    """NMI and purity, each of all these batches as one and of the last alone; on the CPU."""
    label_N, source_N = (torch.cat(parts) for parts in zip(*batches, strict=True))
    num_sources = max(num_sources, int(source_N.max()) + 1)
    cell_N, size = label_N * num_sources + source_N, num_domains * num_sources
    last_B = cell_N[-len(batches[-1][0]) :]
    count_2X = torch.stack([cell.bincount(minlength=size) for cell in (cell_N, last_B)])
    return agreement_of_counts(count_2X.view(2, num_domains, num_sources).double())
