"""The choices that a run makes: each value with what it does, what it costs and when to use it.

`dograph train --help` and docs/configuration.md show these texts. Times and memory are multiples
of a step without a mixer (GPT-2 with 24 layers on an H200, docs/cost.md); differences of losses
are from docs/results.md.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class Choice(NamedTuple):
    """A value of a setting."""

    does: str
    cost: str
    use: str


# How sketches and the weighted gradient sum_i c_i g_i are computed.
Mode = Literal["full", "twopass", "topdown", "head", "exact", "reference"]
_MODES: dict[Mode, Choice] = {
    "full": Choice(
        "sketches every layer; the weighted gradient is computed once, from stored inputs and "
        "output gradients",
        "1.09 x time, 0.95 x memory",
        "the default; distances between gradients are off by 3 to 4 %",
    ),
    "twopass": Choice(
        "sketches every layer; a second backward on the same graph applies the weights",
        "1.94 x time, 1.12 x memory",
        "FSDP2 (train.shard), or sketch.exclude",
    ),
    "topdown": Choice(
        "sketches the output layer and the top sketch.top_blocks blocks; ordinary backward below",
        "1.02 x time, 1.00 x memory",
        "cheaper than full, but distances are off by 8 to 14 %",
    ),
    "head": Choice(
        "sketches the output layer only; ordinary backward below it",
        "1.00 x time, 1.01 x memory",
        "no extra cost, FSDP2, or layers without a rule; distances are off by 11 to 14 %",
    ),
    "exact": Choice(
        "holds every sample's gradient in full and sums them with the weights",
        "1.46 x time, 2.59 x memory",
        "small models; needed by the projections gaussian and none",
    ),
    "reference": Choice(
        "runs one backward per sample",
        "not measured; a similar loop took 41 x time",
        "tests: the simple definition that the other modes must agree with",
    ),
}
MODES = tuple(_MODES)
CUTTING: tuple[Mode, ...] = ("topdown", "head")  # below their cut, backward is the ordinary one
EXPLICIT: tuple[Mode, ...] = ("exact", "reference")  # hold per-sample gradients in full
DETACHING: tuple[Mode, ...] = ("full", "exact")  # their taps take every parameter out of the graph
# Modes that support `exclude`: their gradients come from an ordinary backward.
SPARING: tuple[Mode, ...] = ("twopass", "head", "reference")
# They hold the graph of (nearly) the whole model until there are weights: too much for many
# micro-batches. Their gradient is a backward through the wrapper, as FSDP2 needs it.
GRAPH_HOLDING: tuple[Mode, ...] = ("twopass", "head")
SHARDABLE: tuple[Mode, ...] = ("twopass", "head")

# The random matrices of a sketch. For a weight matrix with gradient G (R x C): S = P_row' G P_col.
Kind = Literal["rademacher", "two-sided", "gaussian", "none"]
_KINDS: dict[Kind, Choice] = {
    "rademacher": Choice(
        "S = P_row' G P_col with random signs, all layers summed into sketch.dim numbers",
        "the cost of the mode",
        "the default",
    ),
    "two-sided": Choice(
        "the same with normally distributed entries",
        "as rademacher, but the matrices take longer to draw",
        "to check that results do not depend on the kind of random numbers",
    ),
    "gaussian": Choice(
        "R'g with a dense matrix R of N(0, 1/K), as the paper has it; drawn in blocks, never held",
        "parameters x sketch.dim operations per sample",
        "small models in mode exact: to compare with the paper",
    ),
    "none": Choice(
        "the gradient itself",
        "all parameters per sample in memory",
        "tiny models in mode exact: no projection error",
    ),
}
KINDS = tuple(_KINDS)
TWO_SIDED: tuple[Kind, ...] = ("rademacher", "two-sided")  # can be computed layer by layer, in taps

# Where the weights of a step come from when its batch is computed in several micro-batches.
Accumulation = Literal["two_sweeps", "keep", "lagged"]
_ACCUMULATIONS: dict[Accumulation, Choice] = {
    "two_sweeps": Choice(
        "a first pass over all micro-batches for the sketches, a second one for the gradient",
        "one more forward, and a backward for the sketches",
        "the default; exact",
    ),
    "keep": Choice(
        "holds inputs and output gradients of all micro-batches until the weights are known",
        "memory of the whole batch",
        "exact, if the batch fits; modes full, topdown and exact",
    ),
    "lagged": Choice(
        "weighs a micro-batch by domains of earlier steps: c_i = w_j / (N p_j), N the world batch",
        "nothing (LLaMA-1.1B: 1.00 x with head, 1.02 x with topdown)",
        "large models; mixer.scope stream or period, not keep_source_shares",
    ),
}

_RECIPES = {
    "recommended": Choice(
        "domains of each batch (K-means on raw gradients), objective precision, no warm-up",
        "0.23 ms per step from sketches to weights",
        "the default: 0.026 nats below plain training, 5 seeds",
    ),
    "safe": Choice(
        "domains that persist (scope stream), precision, at least 90 % effective samples, warm-up",
        "0.22 ms per step; 0.49 with its running averages",
        "domains over time, apply_weights_to=sampling, lagged; no lower loss than plain training",
    ),
    "paper": Choice(
        "domains of each batch, objective uncertainty, as the paper describes it",
        "0.28 ms per step",
        "to reproduce the paper; 0.064 nats above plain training",
    ),
    "inverse-norm": Choice(
        "every sample's gradient divided by its norm: c_i ~ 1 / |g_i|; domains do not matter",
        "about that of recommended; not measured on its own",
        "the baseline to compare a gain with; recommended is 0.003 nats lower, which may be chance",
    ),
}
_SCOPES = {
    "batch": Choice(
        "K-means on the samples of each batch",
        "0.2 to 0.5 ms per step on a GPU, by batch size and objective",
        "the lowest loss so far; domains have no identity over time",
    ),
    "period": Choice(
        "pools the sketches of period_steps steps, clusters once, holds the domains for the next",
        "memory for period_steps x batch x sketch.dim numbers",
        "domains from more samples than a batch; no lower loss than batch in our runs",
    ),
    "stream": Choice(
        "centroids that follow the model; samples count half after half_life steps",
        "0.22 ms per step on a GPU, and a refit every 25 steps",
        "domains with an identity over time: recipe safe, sampling, lagged accumulation",
    ),
}
# G: Gram of the domains' mean gradients; s: mean squared gradient norm; w: weights, summing to 1.
OBJECTIVES = {
    "precision": Choice(
        "w_j ~ share_j x (gradient norm in domain j)^-q",
        "0.23 ms, a formula",
        "the default; -0.025 nats against plain training (400 steps, 3 seeds)",
    ),
    "uncertainty": Choice(
        "min w'Gw / s + beta sum_j sigma_j^2 w_j: a short update from domains of little spread",
        "0.28 ms, a quadratic program",
        "the paper's choice; +0.044 nats",
    ),
    "variance": Choice(
        "min Var_j |g_j| + lambda w'Gw / s: the weights that make the update shortest",
        "0.33 ms, a quadratic program",
        "to compare with the paper; +0.032 nats, an interval that includes 0",
    ),
    "robust": Choice(
        "w_j ~ exp(|g_j| / tau), norms in units of their average: the hardest domains",
        "0.22 ms, a formula",
        "to compare with the paper; +0.76 nats",
    ),
    "alignment": Choice(
        "w_j ~ max(cos(g_j, sum_l w_l g_l), 0): domains that agree with the update",
        "0.23 ms, 20 iterations",
        "to compare with the paper; +0.98 nats",
    ),
}
CHOICES: dict[str, Mapping[Any, Choice]] = {
    "mixer.recipe": _RECIPES,
    "mixer.scope": _SCOPES,
    "mixer.objective": OBJECTIVES,
    "sketch.mode": _MODES,
    "sketch.projection": _KINDS,
    "sketch.accumulation": _ACCUMULATIONS,
}


def help_text(width: int = 80) -> str:
    """Every choice, for the command line."""
    lines = ["Choices (settings: docs/configuration.md)"]
    for setting, values in CHOICES.items():
        lines += ["", f"{setting}="]
        for value, choice in values.items():
            text = f"  {value:<12} {choice.does}. Cost: {choice.cost}. Use: {choice.use}."
            lines.append(textwrap.fill(text, width, subsequent_indent=15 * " "))
    return "\n".join(lines)
