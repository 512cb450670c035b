"""Slopes of the mixing laws, written out, and one law in another gauge. Shapes: S sources."""

from dataclasses import replace

import numpy as np

from dograph.surrogates.exponential import ExponentialLaw


def gradient(law, weight_S):
    """dL/dr_j: t_j exp(log_k + t . r), or -alpha a_j (a . r)^(-alpha - 1)."""
    if isinstance(law, ExponentialLaw):
        return law.t_S * np.exp(law.log_k + weight_S @ law.t_S)
    return -law.alpha * law.a_S * (weight_S @ law.a_S) ** (-law.alpha - 1)


def shifted(law, by):
    """The same exponential law with t + by and log_k - by."""
    return replace(law, log_k=law.log_k - by, t_S=law.t_S + by)
