"""The choices that a run makes: each value with what it does, what it costs and when to use it.

`dograph train --help` and docs/configuration.md show these texts. Times and memory are multiples
of a step without a mixer (GPT-2 with 24 layers on an H200, docs/cost.md); differences of losses
are from docs/results.md. In formulas: G is the gradient of a weight matrix (sketch.projection) or
the Gram of the domains' mean gradients g_j (mixer.objective), s the mean squared gradient norm, w
the weights of domains, c those of samples.
"""

import re
import textwrap
from typing import Literal, NamedTuple, get_args

_TEXTS = """
mixer.recipe:
  recommended: domains of each batch (K-means on raw gradients), objective precision, no warm-up.
    Cost: 0.23 ms per step from sketches to weights. Use: the default: 0.026 nats below plain
    training, 5 seeds.
  safe: domains that persist (scope stream), precision, at least 90 % effective samples, warm-up.
    Cost: 0.22 ms per step; 0.49 with its running averages. Use: domains over time,
    apply_weights_to=sampling, lagged; no lower loss than plain training.
  paper: domains of each batch, objective uncertainty, as the paper describes it. Cost: 0.28 ms per
    step. Use: to reproduce the paper; 0.064 nats above plain training.
  inverse-norm: every sample's gradient divided by its norm: c_i ~ 1 / |g_i|; domains do not matter.
    Cost: about that of recommended; not measured on its own. Use: the baseline to compare a gain
    with; recommended is 0.003 nats lower, which may be chance.
mixer.scope:
  batch: K-means on the samples of each batch. Cost: 0.2 to 0.5 ms per step on a GPU, by batch size
    and objective. Use: the lowest loss so far; domains have no identity over time.
  period: pools the sketches of period_steps steps, clusters once, holds the domains for the next.
    Cost: memory for period_steps x batch x sketch.dim numbers. Use: domains from more samples than
    a batch; no lower loss than batch in our runs.
  stream: centroids that follow the model; samples count half after half_life steps. Cost: 0.22 ms
    per step on a GPU, and a refit every 25 steps. Use: domains with an identity over time: recipe
    safe, sampling, lagged accumulation.
mixer.objective:
  precision: w_j ~ share_j x (gradient norm in domain j)^-q. Cost: 0.23 ms, a formula. Use: the
    default; -0.025 nats against plain training (400 steps, 3 seeds).
  uncertainty: min w'Gw / s + beta sum_j sigma_j^2 w_j: a short update from domains of little
    spread. Cost: 0.28 ms, a quadratic program. Use: the paper's choice; +0.044 nats.
  variance: min Var_j |g_j| + lambda w'Gw / s: the weights that make the update shortest. Cost: 0.33
    ms, a quadratic program. Use: to compare with the paper; +0.032 nats, an interval that includes
    0.
  robust: w_j ~ exp(|g_j| / tau), norms in units of their average: the hardest domains. Cost: 0.22
    ms, a formula. Use: to compare with the paper; +0.76 nats.
  alignment: w_j ~ max(cos(g_j, sum_l w_l g_l), 0): domains that agree with the update. Cost: 0.23
    ms, 20 iterations. Use: to compare with the paper; +0.98 nats.
sketch.mode:
  full: sketches every layer; the weighted gradient is computed once, from stored inputs and output
    gradients. Cost: 1.09 x time, 0.95 x memory. Use: the default; distances between gradients are
    off by 3 to 4 %.
  twopass: sketches every layer; a second backward on the same graph applies the weights. Cost: 1.94
    x time, 1.12 x memory. Use: FSDP2 (train.shard), or a backward of your own.
  topdown: sketches the output layer and the top sketch.top_blocks blocks; ordinary backward below.
    Cost: 1.02 x time, 1.00 x memory. Use: cheaper than full, but distances are off by 8 to 14 %.
  head: sketches the output layer only; ordinary backward below it. Cost: 1.00 x time, 1.01 x
    memory. Use: no extra cost, FSDP2, or layers without a rule; distances are off by 11 to 14 %.
  exact: holds every sample's gradient in full and sums them with the weights. Cost: 1.46 x time,
    2.59 x memory. Use: small models; needed by the projections gaussian and none.
  reference: runs one backward per sample. Cost: not measured; a similar loop took 41 x time. Use:
    tests: the simple definition that the other modes must agree with.
sketch.projection:
  rademacher: S = P_row' G P_col with random signs, all layers summed into sketch.dim numbers. Cost:
    the cost of the mode. Use: the default.
  two-sided: the same with normally distributed entries. Cost: as rademacher, but the matrices take
    longer to draw. Use: to check that results do not depend on the kind of random numbers.
  gaussian: R'g with a dense matrix R of N(0, 1/K), as the paper has it; drawn in blocks, never
    held. Cost: parameters x sketch.dim operations per sample. Use: small models in mode exact: to
    compare with the paper.
  none: the gradient itself. Cost: all parameters per sample in memory. Use: tiny models in mode
    exact: no projection error.
sketch.accumulation:
  two_sweeps: a first pass over all micro-batches for the sketches, a second one for the gradient.
    Cost: one more forward, and a backward for the sketches. Use: the default; exact.
  keep: holds inputs and output gradients of all micro-batches until the weights are known. Cost:
    memory of the whole batch. Use: exact, if the batch fits; modes full, topdown and exact.
  lagged: weighs a micro-batch by domains of earlier steps: c_i = w_j / (N p_j), N the world batch.
    Cost: nothing (LLaMA-1.1B: 1.00 x with head, 1.02 x with topdown). Use: large models;
    mixer.scope stream or period, not keep_source_shares.
"""

Mode = Literal["full", "twopass", "topdown", "head", "exact", "reference"]
MODES: tuple[Mode, ...] = get_args(Mode)
CUTTING: tuple[Mode, ...] = ("topdown", "head")  # below their cut, backward is the ordinary one
EXPLICIT: tuple[Mode, ...] = ("exact", "reference")  # hold per-sample gradients in full
DETACHING: tuple[Mode, ...] = ("full", "exact")  # their taps take every parameter out of the graph
# They hold the graph of (nearly) the whole model until there are weights: too much for many
# micro-batches. Their gradient is a backward through the wrapper, as FSDP2 needs it.
GRAPH_HOLDING: tuple[Mode, ...] = ("twopass", "head")
SHARDABLE: tuple[Mode, ...] = ("twopass", "head")

Kind = Literal["rademacher", "two-sided", "gaussian", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TWO_SIDED: tuple[Kind, ...] = ("rademacher", "two-sided")  # can be computed layer by layer, in taps

Accumulation = Literal["two_sweeps", "keep", "lagged"]


class ChoiceText(NamedTuple):
    """A value of a setting."""

    does: str
    cost: str
    use: str


def _parsed(texts: str) -> dict[str, dict[str, ChoiceText]]:
    """Choices by setting and value."""
    choices, setting = dict[str, dict[str, ChoiceText]](), ""
    for line in re.sub(r"\n {4}", " ", texts.strip()).splitlines():
        if line.startswith(" "):
            value, text = line.strip(" .").split(": ", 1)
            choices[setting][value] = ChoiceText(*re.split(r"\. (?:Cost|Use): ", text))
        else:
            setting = line.rstrip(":")
            choices[setting] = {}
    return choices


CHOICES = _parsed(_TEXTS)


def help_text(width: int = 80) -> str:
    """Every choice, for the command line."""
    lines = ["Choices (settings: docs/configuration.md)"]
    for setting, values in CHOICES.items():
        lines += ["", f"{setting}="]
        for value, choice in values.items():
            text = f"  {value:<12} {choice.does}. Cost: {choice.cost}. Use: {choice.use}."
            lines.append(textwrap.fill(text, width, subsequent_indent=15 * " "))
    return "\n".join(lines)
