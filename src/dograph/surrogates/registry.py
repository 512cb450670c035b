"""Surrogates by name."""

from dograph.surrogates.boosted import Boosted
from dograph.surrogates.exponential import Exponential
from dograph.surrogates.linear import Linear, Ridge
from dograph.surrogates.surrogate import Surrogate
from dograph.surrogates.transfer import Transfer

# Those with an exact optimum, as convex functions of the mixture; first the mixing law's authors'.
LAWS = (Exponential.name, Transfer.name)

SURROGATES: dict[str, Surrogate] = {
    surrogate.name: surrogate
    for surrogate in (Boosted(), Exponential(), Transfer(), Ridge(), Linear())
}
