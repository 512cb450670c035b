"""Surrogates by name."""

from dograph.surrogates.boosted import Boosted
from dograph.surrogates.exponential import Exponential
from dograph.surrogates.linear import Linear, Ridge
from dograph.surrogates.surrogate import Surrogate

SURROGATES: dict[str, Surrogate] = {
    surrogate.name: surrogate for surrogate in (Boosted(), Exponential(), Ridge(), Linear())
}
