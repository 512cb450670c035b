"""What a model perceives in a corpus, without training: separation of sources, domains, examples.

Gradients of held-out rows are sketched. Sources are compared by the unbiased MMD of Theorem 1 with
permutation tests; the sketches, normalised, centred and normalised again (as in scope stream), are
clustered into domains.

Towards trusted text (--toward): a small step along the mean gradient g_s of a source or stratum
lowers the trusted loss in proportion to <g_s, g_t>, with g_t the mean gradient of the trusted text.
It is stated over |g_t|^2: 1 is as good as a step on the trusted text itself, below 0 does harm. The
gradient of a single row says next to nothing (signal to noise about 0.2), so single rows are listed
by their words alone (`TextScorer`).

Shapes: N rows, T tokens, K sketch, M domains, G sources, X tokens of trusted text, L trusted rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.data.corpus import Block, Corpus, Split, blocks_by_source, even_blocks
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import checked_texts, trusted_inputs
from dograph.data.toward import TextScorer
from dograph.domains.graph import DomainGraph, build_graph
from dograph.domains.kmeans import KMeans, domain_means
from dograph.domains.partition import agreement, partition
from dograph.domains.scopes import closeness
from dograph.errors import ConfigError, CorpusError
from dograph.eval.evaluate import find_subject
from dograph.eval.scores import Report
from dograph.models.build import build_model, load_model
from dograph.models.loss import PerSampleLoss
from dograph.models.presets import PRESETS
from dograph.rng import stream
from dograph.sketch.sketcher import Sketcher
from dograph.stats import Interval, holm, t_interval
from dograph.train.distributed import pick_device
from dograph.train.metrics import sketch_rows

SEQ_LEN = 256  # tokens of a row by default, for models that no run trained
EXAMPLES, LISTED = 3, 5  # rows shown for each domain, and at either end of the text scores
FEW_ROWS = 100  # of a group, below which its help is mostly noise
PREVIEW = 80  # characters of each
TOKENS_AT_ONCE = 4096
# Sums of kernel values that differ by less than this, relative to the kernel's diagonal, are
# equal: the same relabelling summed in another order must count as a tie, not as smaller.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    model: str  # a preset, or any causal LM by path or Hugging Face name
    corpus: Path
    rows: int = 256  # in total, shared equally among the sources
    domains: int = 11
    seq_len: int | None = None
    seed: int = 0
    device: str = "auto"
    exclude: tuple[str, ...] = ()
    toward: tuple[str, ...] = ()  # trusted text


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sources: how far apart their gradients are, and whether by more than chance."""

    first: str
    second: str
    mmd_squared: float
    separation: float  # MMD^2 over the spread of single samples; infinite: there is no spread
    p_value: float  # Holm-corrected


@dataclass(frozen=True, slots=True)
class ShownRow:
    domain: int
    source: str
    stratum: str
    document: int  # in which it starts
    text: str | None  # its beginning; None if the corpus has tokens alone
    score: float | None = None  # towards trusted text, by its words

    @classmethod
    def of(cls, corpus: Corpus, block: Block, domain: int) -> "ShownRow":
        has_text = corpus.manifest.tokenizer.file is not None
        text = " ".join(block.text(corpus).split())[:PREVIEW] if has_text else None
        place: dict[str, Any] = block.place()
        return cls(domain, place["source"], place["stratum"], place["document"], text)


@dataclass(frozen=True, slots=True)
class GroupHelp:
    """What a source or stratum would do for the trusted text."""

    name: str
    rows: int
    help: float  # <g_s, g_t> / |g_t|^2
    interval: Interval  # 95 %, for other rows of both texts
    text_score: float  # mean over its rows


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result, as written to inspection.json."""

    model: str
    corpus: str
    split: Split
    seq_len: int
    rows: dict[str, int]  # by source
    loss_nats: dict[str, float]  # by source
    pairs: list[Pair]
    nmi: float
    purity: float
    graph: DomainGraph
    examples: list[ShownRow]  # nearest each domain's centroid
    notes: list[str]
    toward: list[GroupHelp]  # sources and strata, most helpful for the trusted text first
    scored: list[ShownRow]  # most and least like it


def inspect_model(request: InspectRequest, report: Report = lambda *_: None) -> Inspection:
    corpus = Corpus(request.corpus)
    report(f"loading {request.model}", 0, 0)
    model, seq_len, notes = open_subject(request, corpus)
    split, blocks, row_notes = choose_rows(corpus, seq_len, request)
    named = [block.stratum.entry.source for block in blocks]
    sources = [source for source in corpus.sources if source in named]
    source_N = torch.tensor([sources.index(source) for source in named])
    trusted = TrustedText(request.toward, corpus, blocks) if request.toward else None
    token_NT = torch.from_numpy(np.stack([block.tokens() for block in blocks]))
    loss_N, sketch_NK = sketched(model, token_NT, request, report)
    helped, extremes = list[GroupHelp](), dict[int, float]()
    if trusted is not None:
        _, trusted_LK = sketched(model, trusted.rows(seq_len, request.rows), request, report)
        helped, toward_notes = trusted.groups(sketch_NK, trusted_LK)
        extremes, row_notes = trusted.extremes(), row_notes + toward_notes
    report("comparing sources", 0, 0)
    how = {"num_permutations": max(999, 10 * len(sources) ** 2), "seed": request.seed}
    found = pairwise_mmd(sketch_NK, source_N, len(sources), **how)
    pairs = [Pair(sources[g], sources[h], *own) for (g, h), own in found.items()]
    label_N, nearest = perceived(sketch_NK, request.domains, request.seed)
    nmi, purity = agreement(label_N, source_N, request.domains, len(sources))
    domains = partition(sketch_NK, label_N, request.domains)
    count_G = torch.bincount(source_N)
    mean_G = torch.bincount(source_N, weights=loss_N.double()) / count_G
    row_of = {n: ShownRow.of(corpus, blocks[n], int(label_N[n])) for n in (*nearest, *extremes)}
    return Inspection(
        model=request.model,
        corpus=str(corpus.directory),
        split=split,
        seq_len=seq_len,
        rows=dict(zip(sources, count_G.tolist(), strict=True)),
        loss_nats=dict(zip(sources, mean_G.tolist(), strict=True)),
        pairs=sorted(pairs, key=lambda pair: -pair.separation),  # farthest apart first
        nmi=float(nmi),
        purity=float(purity),
        graph=build_graph(domains, None, label_N, source_N, sources, step=0),
        examples=[row_of[n] for n in nearest],
        notes=[*notes, *row_notes],
        toward=helped,
        scored=[replace(row_of[n], score=score) for n, score in extremes.items()],
    )


def open_subject(request: InspectRequest, corpus: Corpus) -> tuple[PerSampleLoss, int, list[str]]:
    """The model, the number of tokens of a row, and notes for the reader."""
    name, seed, device = request.model, request.seed, pick_device(request.device)
    if name in PRESETS:
        seq_len = request.seq_len or min(SEQ_LEN, PRESETS[name].positions)
        size = {"vocab_size": corpus.vocab_size, "seq_len": seq_len}
        model = build_model(name, **size, dropout=0.0, seed=seed)
        return model.to(device), seq_len, [f"{name} is a preset: its weights are random, untrained"]
    subject, notes = find_subject(name), []
    model = load_model(subject.model, vocab_size=corpus.vocab_size, seed=seed, pretrained=True)
    positions = getattr(model.model.config, "max_position_embeddings", SEQ_LEN)
    # Positions beyond a run's rows were never trained.
    usual = SEQ_LEN if subject.run is None else subject.run.config().data.seq_len
    seq_len = request.seq_len or min(usual, positions)
    if seq_len > positions:
        raise ConfigError(
            f"data.seq_len={seq_len}, but {name} has {positions} positions; give at most that"
        )
    if model.vocab_size > 1.1 * corpus.vocab_size:
        notes.append(
            f"the model has {model.vocab_size} tokens, the corpus' tokenizer {corpus.vocab_size}: "
            "unless both give tokens the same ids, the model's input is meaningless; prepare the "
            "corpus with the model's tokenizer"
        )
    return model.to(device), seq_len, notes


def choose_rows(
    corpus: Corpus, seq_len: int, request: InspectRequest
) -> tuple[Split, list[Block], list[str]]:
    """Rows of one split, two or more from each source that has them, and notes for the reader."""
    splits: tuple[Split, ...] = ("validation", "train")
    for split in splits[1:] if request.toward else splits:  # train is what would be drawn
        have = blocks_by_source(corpus, split, seq_len)
        usable = [source for source, count in have.items() if count >= 2]
        if len(usable) >= min(2, len(have)):
            break
    if not usable:
        raise CorpusError(
            f"{corpus.directory} has no source with two rows of {seq_len} tokens; give a smaller "
            "data.seq_len, or prepare more text"
        )
    if request.rows < 2 * len(usable):
        raise ConfigError(
            f"--rows {request.rows} is too few for {len(usable)} sources: a spread needs two rows "
            f"of a source; give at least {2 * len(usable)}, better {32 * len(usable)}"
        )
    blocks = even_blocks(corpus, split, seq_len, request.rows, least=2)
    if not 1 <= request.domains <= len(blocks):
        raise ConfigError(
            f"--domains {request.domains}, but there are {len(blocks)} rows to cluster; give 1 to "
            f"{len(blocks)}, or more --rows"
        )
    notes = []
    if split == "train":
        why = "" if request.toward else ": the validation text is too short for rows of that length"
        notes.append(f"rows are from training text, which the model may have seen{why}")
    few = [f"{name} is left out: {num} rows" for name, num in have.items() if num < 2]
    return split, blocks, notes + [f"{note} of {seq_len} tokens ({split} text)" for note in few]


def sketched(
    model: PerSampleLoss, token_NT: Tensor, request: InspectRequest, report: Report
) -> tuple[Tensor, Tensor]:
    """Loss and sketch of each row."""
    sketcher = Sketcher(model, mode="twopass", seed=request.seed, exclude=request.exclude)
    at_once = max(1, TOKENS_AT_ONCE // token_NT.shape[1])
    losses, sketches = [], []
    for loss_b, sketch_bK in sketch_rows(sketcher, token_NT, at_once=at_once):
        losses.append(loss_b.cpu())
        sketches.append(sketch_bK.float().cpu())
        report("sketching", sum(map(len, losses)), len(token_NT))
    return torch.cat(losses), torch.cat(sketches)


def perceived(sketch_NK: Tensor, num_domains: int, seed: int) -> tuple[Tensor, list[int]]:
    """The domain of each row, and the rows nearest each domain's centroid."""
    unit_NK = F.normalize(sketch_NK.double())
    direction_NK = F.normalize(unit_NK - unit_NK.mean(dim=0))
    label_N = KMeans(num_domains, normalise=True, restarts=16, seed=seed)(direction_NK, 0)
    centroid_MK = domain_means(direction_NK, label_N, num_domains)
    near_NM = closeness(direction_NK, centroid_MK, normalise=True)
    order_NM = near_NM.argsort(dim=0, descending=True, stable=True)
    nearest = []
    for domain, order_N in enumerate(order_NM.T.tolist()):
        nearest += [n for n in order_N if label_N[n] == domain][:EXAMPLES]
    return label_N, nearest


class TrustedText:
    """Trusted files, and the rows of a corpus scored by their words."""

    def __init__(self, files: tuple[str, ...], corpus: Corpus, blocks: Sequence[Block]) -> None:
        options = PrepareOptions(inputs=files, toward=files, out=Path())
        read = checked_texts(trusted_inputs(options), options)
        texts = [text.content for text in read if text.content]
        contents = [block.text(corpus).encode() for block in blocks]
        self.blocks, self.score_N = blocks, TextScorer(texts, contents)(contents)
        end = [token for token in [corpus.manifest.tokenizer.eot_id] if token is not None]
        ids = corpus.tokenizer.encode_batch([t.decode() for t in texts], add_special_tokens=False)
        self.token_X = torch.tensor([token for own in ids for token in (*own.ids, *end)])

    def rows(self, seq_len: int, most: int) -> Tensor:
        """At most `most` rows of trusted tokens, evenly spaced, (L, T)."""
        number = len(self.token_X) // seq_len
        if number < 2:
            raise CorpusError(
                f"--toward has {len(self.token_X)} tokens, and at least two rows of {seq_len} are "
                "needed; give more text, or a smaller data.seq_len"
            )
        chosen = np.linspace(0, number - 1, min(most, number)).round().astype(int)
        return self.token_X[: number * seq_len].view(number, seq_len)[chosen]

    def extremes(self) -> dict[int, float]:
        """The rows with the highest and the lowest text scores, and these scores."""
        order = np.argsort(-self.score_N, kind="stable").tolist()
        return {n: float(self.score_N[n]) for n in order[:LISTED] + order[LISTED:][-LISTED:]}

    def groups(self, sketch_NK: Tensor, trusted_LK: Tensor) -> tuple[list[GroupHelp], list[str]]:
        """Sources, then strata, most helpful first, and notes for the reader."""
        trusted_LK, number = trusted_LK.double(), len(trusted_LK)
        # <t, mean of the other rows>: without products of a row with itself, noise adds nothing.
        square_L = trusted_LK @ trusted_LK.sum(dim=0) - trusted_LK.square().sum(dim=1)
        square_L = square_L / (number - 1)
        square, error = float(square_L.mean()), 2 * float(square_L.std()) / sqrt(number)
        if t_interval(square, error, number - 1).low <= 0:
            few = f"the {number} trusted rows show no common gradient to compare with"
            return [], [f"{few}; give more --rows, or more trusted text"]
        product_NL = sketch_NK.double() @ trusted_LK.T / square
        members: dict[str, list[int]] = {}
        for n, block in enumerate(self.blocks):
            for name in {block.stratum.entry.source, block.stratum.entry.stratum}:
                members.setdefault(name, []).append(n)
        helped, notes = [], []
        for name, rows in sorted(members.items()):
            if len(rows) == 1:
                notes.append(f"{name} is left out: one row has no interval")
                continue
            by_row_n, by_trusted_L = product_NL[rows].mean(dim=1), product_NL[rows].mean(dim=0)
            value, score = float(by_row_n.mean()), fmean(self.score_N[rows].tolist())
            # Both sets of rows are samples, so their variances add up; a trusted row also changes
            # the |g_t|^2 that the product is divided by.
            parts = (by_row_n, by_trusted_L - 2 * value * square_L / square)
            error = sqrt(sum(float(part.var()) / len(part) for part in parts))
            interval = t_interval(value, error, min(map(len, parts)) - 1)
            helped.append(GroupHelp(name, len(rows), value, interval, score))
        if min(group.rows for group in helped) < FEW_ROWS:
            notes.append(f"groups of fewer than {FEW_ROWS} rows say little; give more --rows")
        sources = {block.stratum.entry.source for block in self.blocks}
        helped.sort(key=lambda group: (group.name not in sources, -group.help))
        return helped, notes


# Theorem 1: the distance of groups of samples in gradient space, with permutation tests.
#
# Shapes: N samples of all groups, P pooled samples of two groups, K gradient or sketch, G groups
# (sources), R relabellings.


class PairMMD(NamedTuple):
    mmd_squared: float
    separation: float  # MMD^2 over mean spread
    p_value: float  # Holm-corrected over all pairs


def pairwise_mmd(
    feature_NK: Tensor, group_N: Tensor, num_groups: int, *, num_permutations: int = 999, seed: int
) -> dict[tuple[int, int], PairMMD]:
    """Squared maximum mean discrepancy, separation and corrected p-value of every pair of groups.

    With the gradient kernel k(s, s') = <g(s), g(s')>, MMD^2 = E_xx[k] + E_yy[k] - 2 E_xy[k]
    (Theorem 1). This is the unbiased estimator: it excludes every sample's product with itself, and
    may be negative.

    Under the null the samples of two groups are exchangeable, so the observed MMD^2 is one of the
    values that random relabellings give: p = (1 + #{null >= observed}) / (1 + num_permutations),
    valid at any sample size. The linear kernel compares only means. Corrected p-values are at least
    num_pairs / (1 + num_permutations); with G groups, use num_permutations >= 10 G^2 to reach 0.05.

    The separation is MMD^2 over the mean of tr cov of the two groups: the squared distance of the
    means in units of the spread of single samples, so it does not depend on the gradient's scale.
    If neither group has a spread it is infinite, or zero if their means agree.
    """
    if not bool(feature_NK.isfinite().all()):
        raise ConfigError("some gradients are not finite, so there is no MMD; remove those samples")
    assert torch.bincount(group_N, minlength=num_groups).min() > 1, "a spread needs two samples"
    feature_NK = feature_NK.detach().double()
    # Centring changes no MMD, but a mean much larger than the differences between groups would
    # lose them to rounding.
    centred_NK = feature_NK - feature_NK.mean(0)
    kernel_NN = centred_NK @ centred_NK.T
    group_N = group_N.to(kernel_NN.device)
    rows = [torch.nonzero(group_N == group)[:, 0] for group in range(num_groups)]
    spread_G = [float(centred_NK[row].var(dim=0).sum()) for row in rows]
    rounding = ROUNDING * float(kernel_NN.diagonal().mean())
    pairs: dict[tuple[int, int], PairMMD] = {}
    for g, h in combinations(range(num_groups), 2):
        pooled_P = torch.cat([rows[g], rows[h]])
        kernel_PP = kernel_NN[pooled_P][:, pooled_P]
        own_P = np.arange(len(pooled_P)) < len(rows[g])
        labelling_RP = np.tile(own_P, (1 + num_permutations, 1))  # the first one is the observed
        generator = stream(seed, "theory", "mmd", g, h)
        generator.permuted(labelling_RP[1:], axis=1, out=labelling_RP[1:])
        first_RP = torch.from_numpy(labelling_RP).to(kernel_PP.device)
        value_R = _statistics(kernel_PP, first_RP)
        least = value_R[0] - ROUNDING * kernel_PP.diagonal().mean()
        as_large = int((value_R[1:] >= least).sum())
        distance = float(value_R[0])
        spread = (spread_G[g] + spread_G[h]) / 2
        separation = float("inf") if distance > rounding else 0.0
        if spread > rounding:
            separation = distance / spread
        p_value = (1 + as_large) / (1 + num_permutations)
        pairs[g, h] = PairMMD(distance, separation, p_value)
    corrected = holm([pair.p_value for pair in pairs.values()])
    both = zip(pairs.items(), corrected, strict=True)
    return {key: pair._replace(p_value=p) for (key, pair), p in both if p is not None}


def _statistics(kernel_PP: Tensor, first_RP: Tensor) -> Tensor:
    """MMD^2 for every labelling of the pooled samples; first groups all have the same size."""
    first_RP = first_RP.to(kernel_PP)
    n = float(first_RP[0].sum())
    m = len(kernel_PP) - n
    kernel_PP = kernel_PP - torch.diag(kernel_PP.diagonal())
    to_first_RP = first_RP @ kernel_PP
    xx_R = (to_first_RP * first_RP).sum(1)
    xy_R = to_first_RP.sum(1) - xx_R
    yy_R = kernel_PP.sum() - xx_R - 2 * xy_R
    return xx_R / (n * (n - 1)) + yy_R / (m * (m - 1)) - 2 * xy_R / (n * m)
