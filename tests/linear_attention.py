"""The linearised attention model of the paper's appendix, and its gradients in closed form.

Shapes: T tokens (n in the paper), D input width (d), E query and key width (d_k), F value width,
H hidden width, V vocabulary. weight_V, weight_Q, ... are named after their parameter block, as in
the paper; there the letter is no shape.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.errors import ConfigError, did_you_mean

Block = Literal["V", "Q", "K", "O", "W"]
BLOCKS: tuple[Block, ...] = get_args(Block)


class Activations(NamedTuple):
    """Intermediate values of the forward pass of one sample."""

    query_TE: Tensor
    key_TE: Tensor
    value_TF: Tensor
    output_TF: Tensor  # O in the paper
    hidden_TH: Tensor  # H
    logit_TV: Tensor  # Z


class Mismatch(NamedTuple):
    """The upstream gradients of one sample (App. Proofs, "Upstream Gradients")."""

    logit_TV: Tensor  # G_Z = Pi - Y
    hidden_TH: Tensor  # G_H = G_Z W'
    output_TF: Tensor  # G_O = G_H W_O' = (Pi - Y) M = R, with M = W' W_O'


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """One attention layer with a linearised softmax, and two linear maps to the logits.

    Q = X W_Q, K = X W_K, V = X W_V, O = A V + T Q K' V, H = O W_O, Z = H W, where A = 11'/n,
    C = I - 11'/n, T = C / (tau n sqrt(d_k)) (App. Proofs, "Linearized Attention Mechanism").
    There is no causal mask, as in the paper.

    The paper calls P ~ A + C S / (tau n) the first-order expansion of the row softmax of
    S = Q K' / sqrt(d_k). It is not: a row softmax at temperature tau expands to A + S C / (tau n),
    which centres every row. C on the left centres every column: the expansion of the column
    softmax, whose rows do not sum to one. So the error of the printed form is linear in S, that of
    the correct one quadratic. They are equal if C S = S C, for example if the tokens of X sum to
    zero. We keep the printed form, because the theorem is stated for it. With C on the right,
    O = A V + Q K' C V / (tau n sqrt(d_k)) is also linear in each of V, Q and K, so the theorem
    holds as well.
    """

    weight_V: Tensor  # (D, F)
    weight_Q: Tensor  # (D, E)
    weight_K: Tensor  # (D, E)
    weight_O: Tensor  # (F, H)
    weight_W: Tensor  # (H, V)
    tau: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ConfigError(f"tau must be finite and > 0, got {self.tau}")
        weights = (self.weight_V, self.weight_Q, self.weight_K, self.weight_O, self.weight_W)
        shape = {b: tuple(weight.shape) for b, weight in zip(BLOCKS, weights, strict=True)}
        if any(len(size) != 2 for size in shape.values()):
            raise ConfigError(f"every weight must be a matrix, got the shapes {shape}")
        if not (
            shape["V"][0] == shape["Q"][0]
            and shape["Q"] == shape["K"]
            and shape["V"][1] == shape["O"][0]
            and shape["O"][1] == shape["W"][0]
        ):
            raise ConfigError(
                "the weights do not fit together: V is (D, F), Q and K are (D, E), O is (F, H) "
                f"and W is (H, V); got {shape}"
            )

    def activations(self, x_TD: Tensor) -> Activations:
        width = self.weight_Q.shape[0]
        if x_TD.ndim != 2 or x_TD.shape[0] == 0 or x_TD.shape[1] != width:
            raise ConfigError(
                f"x must have the shape (tokens, {width}) with at least one token, "
                f"got {tuple(x_TD.shape)}"
            )
        query_TE, key_TE = x_TD @ self.weight_Q, x_TD @ self.weight_K
        value_TF = x_TD @ self.weight_V
        output_TF = _mean_token(value_TF) + self._centre(query_TE @ (key_TE.T @ value_TF))
        hidden_TH = output_TF @ self.weight_O
        logit_TV = hidden_TH @ self.weight_W
        return Activations(query_TE, key_TE, value_TF, output_TF, hidden_TH, logit_TV)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Logits of every token of one sample, (T, V)."""
        return self.activations(x_TD).logit_TV

    def loss(self, x_TD: Tensor, label_T: Tensor) -> Tensor:
        """Cross entropy of one sample, summed over its tokens (so that G_Z = Pi - Y)."""
        return F.cross_entropy(self.forward(x_TD), label_T, reduction="sum")

    def mismatch(self, x_TD: Tensor, label_T: Tensor) -> Mismatch:
        """The upstream gradients G_Z, G_H and G_O = R, with Y the one-hot rows of the labels."""
        prob_TV = self.forward(x_TD).softmax(-1)
        target_TV = F.one_hot(label_T, prob_TV.shape[-1]).to(prob_TV.dtype)
        logit_TV = prob_TV - target_TV
        hidden_TH = logit_TV @ self.weight_W.T
        return Mismatch(logit_TV, hidden_TH, hidden_TH @ self.weight_O.T)

    def gradients(self, x_TD: Tensor, label_T: Tensor) -> dict[Block, Tensor]:
        """Gradient of the loss of one sample for every parameter block, in closed form.

        With R = G_O:

            W_V: X' (A' R + K Q' T' R)      W_Q: X' (T' R V' K)      W_K: X' (V R' T Q)
            W_O: O' G_H                     W:   H' G_Z

        (App. Proofs, "Per-sample gradients"). All five agree with autograd as printed.
        """
        upstream = self.mismatch(x_TD, label_T)
        of_block: dict[Block, Tensor] = dict.fromkeys(BLOCKS, upstream.output_TF)
        of_block |= {"O": upstream.hidden_TH, "W": upstream.logit_TV}
        return {block: self.gradient_operator(x_TD, block)(of_block[block]) for block in BLOCKS}

    def gradient_operator(self, x_TD: Tensor, block: Block) -> Callable[[Tensor], Tensor]:
        """The linear map Lin_b(x) from an upstream gradient to the gradient of a block.

        For V, Q and K it maps R = (Pi - Y) M, as the paper says, and is given by X, Q, K, V, T.
        The paper claims this of every block, but O maps G_H (W_O: O' G_H) and W maps G_Z
        (W: H' G_Z), and R is a projection of these, R = G_H W_O' = G_Z W' W_O'. The rows of G_Z
        sum to zero, so a linear map of R gives these gradients for all labels if and only if
        (except for O = 0 and H = 0)

            O: no nonzero W z with z summing to zero has W_O W z = 0 (sufficient: W_O has full
               column rank, so H <= F; then the gradient is O' R pinv(W_O)'),
            W: no nonzero z summing to zero has W_O W z = 0 (so V - 1 <= F, which no language
               model satisfies).

        Otherwise two samples can have the same R and different gradients. Theorem 1 does not need
        it: it holds for any square-integrable gradient, with k_b(s, s') = <g_b(s), g_b(s')>.
        Linear means linear in R at a fixed x; R itself depends on x through the softmax.
        """
        if block not in BLOCKS:
            raise ConfigError(f'block="{block}" is not known; {did_you_mean(block, BLOCKS)}')
        query_TE, key_TE, value_TF, output_TF, hidden_TH, _ = self.activations(x_TD)
        centre, x_DT = self._centre, x_TD.T
        operators: dict[Block, Callable[[Tensor], Tensor]] = {
            "V": lambda r_TF: x_DT @ (_mean_token(r_TF) + key_TE @ (query_TE.T @ centre(r_TF))),
            "Q": lambda r_TF: x_DT @ (centre(r_TF) @ (value_TF.T @ key_TE)),
            "K": lambda r_TF: x_DT @ (value_TF @ (centre(r_TF).T @ query_TE)),
            "O": lambda upstream_TH: output_TF.T @ upstream_TH,
            "W": lambda upstream_TV: hidden_TH.T @ upstream_TV,
        }
        return operators[block]

    def _centre(self, any_TF: Tensor) -> Tensor:
        """T times a matrix; T is symmetric, so T' times it is the same."""
        scale = 1.0 / (self.tau * any_TF.shape[0] * math.sqrt(self.weight_K.shape[1]))
        return scale * (any_TF - _mean_token(any_TF))


def _mean_token(any_TF: Tensor) -> Tensor:
    """A times a matrix: every row is the mean row."""
    return torch.mean(any_TF, dim=0, keepdim=True).expand_as(any_TF)
