"""Surrogates by name."""

from dograph.mixtures.exponential import Exponential
from dograph.mixtures.linear import Linear, Ridge
from dograph.mixtures.surrogate import Surrogate
from dograph.mixtures.surrogates import Boosted
from dograph.mixtures.transfer import Transfer

# Those with an exact optimum, as convex functions of the mixture; first the mixing law's authors'.
LAWS = (Exponential.name, Transfer.name)

SURROGATES: dict[str, Surrogate] = {
    surrogate.name: surrogate
    for surrogate in (Boosted(), Exponential(), Transfer(), Ridge(), Linear())
}
