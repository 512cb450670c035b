"""MMD of two groups by the sums of Theorem 1.

Shapes: N and M samples of two groups, P = N + M pooled samples, K gradient.
"""

import torch


def gradient_kernel(x_NK, y_MK):
    """The kernel k(s, s') = <g(s), g(s')> between two sets of gradients, (N, M), in float64."""
    return x_NK.double() @ y_MK.double().T


def mmd_squared(x_NK, y_MK, estimator="biased"):
    """E_xx[k] + E_yy[k] - 2 E_xy[k], ().

    The biased estimator averages over all pairs of samples and equals ||mean x - mean y||^2; its
    bias is tr cov(x) / N + tr cov(y) / M. The unbiased one excludes every sample's product with
    itself.
    """
    mean_K = torch.cat([x_NK, y_MK]).double().mean(0)  # centring changes nothing but rounding
    x_NK, y_MK = x_NK.double() - mean_K, y_MK.double() - mean_K

    def within(one_NK):
        kernel_NN, n = gradient_kernel(one_NK, one_NK), len(one_NK)
        if estimator == "biased":
            return kernel_NN.mean()
        return (kernel_NN.sum() - kernel_NN.trace()) / (n * (n - 1))

    return within(x_NK) + within(y_MK) - 2 * gradient_kernel(x_NK, y_MK).mean()
