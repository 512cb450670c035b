"""The choices that a run makes, and what each value does.

`dograph train --help` and docs/configuration.md show these texts; the page also says what each
value costs and when to use it. In formulas: G is the gradient of a weight matrix
(sketch.projection) or the Gram of the domains' mean gradients g_j (mixer.objective), s the mean
squared gradient norm, w the weights of domains, c those of samples.
"""

import textwrap
from collections.abc import Iterator
from typing import Literal, get_args

import yaml

CHOICES: dict[str, dict[str, str]] = yaml.safe_load("""
mixer.recipe:
  recommended: domains of each batch (K-means on raw gradients), objective precision, no warm-up
  safe: domains that persist (scope stream), precision, at least 90 % effective samples, warm-up
  paper: domains of each batch, objective uncertainty, as the paper describes it
  inverse-norm: every sample's gradient divided by its norm, c_i ~ 1 / |g_i|; domains do not matter
mixer.scope:
  batch: K-means on the samples of each batch
  period: pools the sketches of period_steps steps, clusters once, holds the domains for the next
  stream: centroids that follow the model; samples count half after half_life steps
mixer.objective:
  precision: w_j ~ share_j x (gradient norm in domain j)^-q
  uncertainty: min w'Gw / s + beta sum_j sigma_j^2 w_j; a short update from domains of little spread
  variance: min Var_j |g_j| + lambda w'Gw / s; the weights that make the update shortest
  robust: w_j ~ exp(|g_j| / tau), norms in units of their average; the hardest domains
  alignment: w_j ~ max(cos(g_j, sum_l w_l g_l), 0); domains that agree with the update
sketch.mode:
  full: sketches every layer; the weighted gradient is computed once, from stored inputs and output
    gradients
  twopass: sketches every layer; a second backward on the same graph applies the weights
  topdown: sketches the output layer and the top sketch.top_blocks blocks; ordinary backward below
  head: sketches the output layer only; ordinary backward below it
  exact: holds every sample's gradient in full and sums them with the weights
  reference: runs one backward per sample
sketch.projection:
  hashed: S = P_row' G P_col with random signs, all layers summed into sketch.dim numbers; where G
    has a row for each token of the vocabulary, P_row is a signed hash, which costs next to nothing
  rademacher: the same without a hash
  gaussian: R'g with a dense matrix R of N(0, 1/K), as the paper has it; drawn in blocks, never held
  none: the gradient itself
sketch.accumulation:
  two_sweeps: a first pass over all micro-batches for the sketches, a second one for the gradient
  keep: holds inputs and output gradients of all micro-batches until the weights are known
  lagged: weighs a micro-batch by domains of earlier steps, c_i = w_j / (N p_j), N the world batch
""")

Mode = Literal["full", "twopass", "topdown", "head", "exact", "reference"]
MODES: tuple[Mode, ...] = get_args(Mode)
CUTTING: tuple[Mode, ...] = ("topdown", "head")  # below their cut, backward is the ordinary one
EXPLICIT: tuple[Mode, ...] = ("exact", "reference")  # hold per-sample gradients in full
DETACHING: tuple[Mode, ...] = ("full", "exact")  # their taps take every parameter out of the graph
# They hold the graph of (nearly) the whole model until there are weights: too much for many
# micro-batches. Their gradient is a backward through the wrapper, as FSDP2 needs it.
GRAPH_HOLDING: tuple[Mode, ...] = ("twopass", "head")

Kind = Literal["hashed", "rademacher", "gaussian", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# They can be computed layer by layer, in taps.
TWO_SIDED: tuple[Kind, ...] = ("hashed", "rademacher")

Accumulation = Literal["two_sweeps", "keep", "lagged"]


def mode_conflicts(mode: Mode, kind: Kind, *, shards: bool, of: str = "") -> Iterator[str]:
    """What a sketch mode cannot do; names of settings begin with `of`."""
    if shards and mode not in GRAPH_HOLDING:  # only FSDP2 can fill `.grad` of a shard
        yield (
            f"{of}mode={mode} cannot fill the gradients of sharded parameters (train.shard=true, "
            f"FSDP2); set {of}mode to {' or '.join(GRAPH_HOLDING)}, or use DDP (train.shard=false)"
        )
    if kind not in TWO_SIDED and mode not in EXPLICIT:
        yield (
            f"{of}projection={kind} needs per-sample gradients in full, which {of}mode={mode} does "
            f"not hold; set {of}mode to {' or '.join(EXPLICIT)}, or {of}projection to "
            f"{' or '.join(TWO_SIDED)}"
        )


def help_text(width: int = 80) -> str:
    """Every choice, for the command line."""
    lines = ["Choices (settings, costs and when to use each: docs/configuration.md)"]
    for setting, values in CHOICES.items():
        lines += ["", f"{setting}="]
        for value, does in values.items():
            text = f"  {value:<12} {does}"
            lines.append(textwrap.fill(text, width, subsequent_indent=15 * " "))
    return "\n".join(lines)
