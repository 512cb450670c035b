"""The domain graph: nodes are domains, edges join those whose mean gradients agree.

Shapes: M domains. Everything is a function of the Gram of the domains' mean gradients. The paper
calls its method graph-constrained without defining an edge; this definition is ours.
"""

import torch
from torch import Tensor


def cosine(gram_MM: Tensor) -> Tensor:
    """Cosines between domain means: G_jl / sqrt(G_jj G_ll), 0 where a mean is zero."""
    norm_M = gram_MM.diagonal().clamp_min(0).sqrt()
    norm_MM = norm_M[:, None] * norm_M
    cosine_MM = gram_MM / torch.where(norm_MM == 0, 1.0, norm_MM)
    return torch.where(norm_MM == 0, 0.0, cosine_MM.clamp(-1, 1))


def adjacency(gram_MM: Tensor) -> Tensor:
    """Edge weights A_jl = max(cos(mean_j, mean_l), 0), none from a domain to itself."""
    cosine_MM = cosine(gram_MM).clamp_min(0)
    return cosine_MM - torch.diag(cosine_MM.diagonal())


def laplacian(adjacency_MM: Tensor) -> Tensor:
    """L = diag(A 1) - A, so that w'Lw is the sum over edges of A_jl (w_j - w_l)^2."""
    return torch.diag(adjacency_MM.sum(dim=1)) - adjacency_MM


def mmd_squared(gram_MM: Tensor) -> Tensor:
    """Squared distances between domain means, G_jj + G_ll - 2 G_jl.

    The squared maximum mean discrepancy of two domains under the linear kernel on gradients, the
    distance of Theorem 1.
    """
    square_M = gram_MM.diagonal()
    return (square_M[:, None] + square_M - 2 * gram_MM).clamp_min(0)
