"""What the fidelity of a sketch is measured by: Grams of gradients, and numbers made of them.

Everything here is float64 and knows a batch by its Gram K = G G' alone, G the per-sample gradients.

Shapes: B samples, T tokens, N entries of a parameter, R x C a matrix, K a sketch or embedding.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

PIECE = 4096  # columns of one product; many small ones side by side keep a GPU busy
PIECES = 1024  # products at once: B x 4M float64 numbers are held beside the gradients


def gram(value_BN: Tensor, pieces: int = PIECES) -> Tensor:
    """X X' in float64 of rows of any length; only some columns are in float64 at a time."""
    num_samples, num_entries = value_BN.shape
    total_BB = value_BN.new_zeros(num_samples, num_samples, dtype=torch.float64)
    whole = num_entries - num_entries % PIECE
    for start in range(0, whole, PIECE * pieces):
        part_Bn = value_BN[:, start : min(start + PIECE * pieces, whole)].double()
        part_pBn = part_Bn.view(num_samples, -1, PIECE).transpose(0, 1)
        total_BB += torch.bmm(part_pBn, part_pBn.mT).sum(dim=0)
    rest_Bn = value_BN[:, whole:].double()
    return total_BB + rest_Bn @ rest_Bn.T


def exact_grams(
    losses: Callable[[Tensor], Tensor],
    token_BT: Tensor,
    parameters: Mapping[str, nn.Parameter],
    *,
    hold: int,
    look: Callable[[str, Tensor], None] = lambda name, gradient_BN: None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The Gram of every parameter's per-sample gradients, and the losses: one backward a sample.

    At most `hold` bytes of gradients are held (and one parameter at least): where that is less than
    all, the backwards run again for the next parameters. `look` sees each parameter's gradients
    once. Results come back on the CPU.
    """
    grams: dict[str, Tensor] = {}
    loss_B = torch.zeros(len(token_BT), dtype=torch.float64, device=token_BT.device)
    for names in _rounds(parameters, len(token_BT), hold):
        wanted = [parameters[name] for name in names]
        held = {
            n: p.new_empty(len(token_BT), p.numel()) for n, p in zip(names, wanted, strict=True)
        }
        for i, token_1T in enumerate(token_BT.split(1)):
            loss = losses(token_1T).sum()
            found = torch.autograd.grad(loss, wanted, allow_unused=True)
            for name, gradient in zip(names, found, strict=True):
                if gradient is None:
                    held[name][i].zero_()
                else:
                    held[name][i].copy_(gradient.detach().flatten())
            loss_B[i] = loss.detach()
        for name in names:
            gradient_BN = held.pop(name)
            look(name, gradient_BN)
            grams[name] = gram(gradient_BN).cpu()
    return grams, loss_B.cpu()


def _rounds(
    parameters: Mapping[str, nn.Parameter], num_samples: int, hold: int
) -> Iterator[list[str]]:
    """Parameter names, as many at a time as `hold` bytes of gradients allow."""
    names: list[str] = []
    used = 0
    for name, parameter in parameters.items():
        size = num_samples * parameter.numel() * parameter.element_size()
        if names and used + size > hold:
            yield names
            names, used = [], 0
        names.append(name)
        used += size
    if names:
        yield names


def embedding(gram_BB: Tensor) -> Tensor:
    """Points X (B, B) with X X' = K, by eigenvectors; negative eigenvalues are rounding."""
    value_B, vector_BB = torch.linalg.eigh(gram_BB)
    points_BK: Tensor = vector_BB * value_B.clamp_min(0).sqrt()
    return points_BK


def centred(gram_BB: Tensor) -> Tensor:
    """The Gram of the points less their mean: H K H with H = I - 11'/B."""
    row_B = gram_BB.mean(dim=0)
    return gram_BB - row_B - row_B[:, None] + row_B.mean()


def pair_distances(gram_BB: Tensor) -> Tensor:
    """Squared distances K_ii + K_jj - 2 K_ij of all pairs i < j."""
    square_B = gram_BB.diagonal()
    first, second = torch.triu_indices(len(gram_BB), len(gram_BB), offset=1)
    distance_P: Tensor = square_B[first] + square_B[second] - 2 * gram_BB[first, second]
    return distance_P


def ratio_error(got: Tensor, true: Tensor) -> tuple[float, float]:
    """Spread of got / true once their common factor is taken out: relative std, largest deviation.

    A projection scales all pairs alike by chance, which neither K-means nor the weights can see.
    """
    ratio = got / true
    ratio = ratio / ratio.mean()
    return float(ratio.std(correction=0)), float((ratio - 1).abs().max())


def gram_correlation(gram_BB: Tensor, true_BB: Tensor) -> float:
    """Pearson correlation of the centred Grams' entries i < j."""
    first, second = torch.triu_indices(len(gram_BB), len(gram_BB), offset=1)
    pair_2P = torch.stack([centred(g)[first, second] for g in (gram_BB, true_BB)])
    return float(torch.corrcoef(pair_2P)[0, 1])


def clustering_objective(gram_BB: Tensor, label_B: Tensor, *, spherical: bool = False) -> float:
    """What K-means minimises, for any labels: sum of squared distances to the domains' means.

    With s_j the sum of domain j's points it is sum_i |x_i|^2 - sum_j |s_j|^2 / n_j. Spherical: the
    points are unit vectors and centroids mean directions, 2 B - 2 sum_j |s_j|.
    """
    if spherical:
        norm_B = gram_BB.diagonal().sqrt()
        gram_BB = gram_BB / norm_B / norm_B[:, None]
    member_MB = (label_B.unique()[:, None] == label_B).to(gram_BB.dtype)
    sum_M = ((member_MB @ gram_BB) * member_MB).sum(dim=1).clamp_min(0)  # |s_j|^2
    if spherical:
        return float(2 * len(label_B) - 2 * sum_M.sqrt().sum())
    return float(gram_BB.diagonal().sum() - (sum_M / member_MB.sum(dim=1)).sum())


def weight_distance(weight_B: Tensor, true_B: Tensor) -> float:
    """sum_i |c_i - c_i'|: 0 for the same weights, 2 at most."""
    return float((weight_B.double() - true_B.double()).abs().sum())


def update_cosine(weight_B: Tensor, true_B: Tensor, gram_BB: Tensor) -> float:
    """Cosine of two weighted gradients: c'Kc' / sqrt(c'Kc c''Kc')."""
    first_B, second_B = weight_B.double(), true_B.double()
    square = (first_B @ gram_BB @ first_B) * (second_B @ gram_BB @ second_B)
    return float(first_B @ gram_BB @ second_B / square.sqrt())


def participation_ratio(matrix_RC: Tensor) -> Tensor:
    """r_eff = (sum s^2)^2 / sum s^4 of the last two axes: 1 at rank one, the rank if all s are one.

    With the Gram of the shorter side, (tr A)^2 / |A|^2, so no decomposition is needed.
    """
    matrix_RC = matrix_RC.double()
    if matrix_RC.shape[-2] > matrix_RC.shape[-1]:
        matrix_RC = matrix_RC.mT
    side_RR = matrix_RC @ matrix_RC.mT
    energy = side_RR.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    ratio: Tensor = energy.square() / side_RR.square().sum(dim=(-2, -1))
    return ratio


def energy_shares(grams: Mapping[str, Tensor], part_of: Callable[[str], str]) -> dict[str, float]:
    """Each part's share of the squared gradients, mean over samples (traces over their sum)."""
    traces: dict[str, float] = {}
    for name, gram_BB in grams.items():
        traces[part_of(name)] = traces.get(part_of(name), 0.0) + float(gram_BB.trace())
    total = sum(traces.values())
    return {part: trace / total for part, trace in traces.items()}


def summary(values: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes, to six digits."""
    found = np.percentile(np.array(values), [50, 25, 75, 0, 100])
    names = ("median", "low", "high", "min", "max")
    rounded = {n: float(f"{v:.6g}") for n, v in zip(names, found.tolist(), strict=True)}
    return {**rounded, "count": len(values)}
