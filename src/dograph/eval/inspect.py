"""What a model perceives in a corpus, without training: sources told apart, domains, examples.

Gradients of held-out rows are sketched part by part of the model. Sources are compared by the
unbiased MMD of Theorem 1 with permutation tests; the sketches, each divided by its norm, centred
and divided by its norm again (as in scope stream), are clustered into domains.

Shapes: N rows, T tokens, K sketch, M domains, G sources, P parts of the model.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.data.blocks import Block
from dograph.data.corpus import Corpus
from dograph.data.manifest import Split
from dograph.domains.agreement import agreement
from dograph.domains.graph import DomainGraph, build_graph, write_graph
from dograph.domains.partition import partition
from dograph.domains.scopes import KMeans, closeness, domain_means
from dograph.eval.examine_subject import Request, choose_rows, open_subject
from dograph.eval.model_parts import part_names
from dograph.files import write_json
from dograph.models.loss import PerSampleLoss
from dograph.sketch.rows import sketch_rows
from dograph.sketch.sketcher import Sketcher
from dograph.theory.mmd import PairwiseMMD, pairwise_mmd

EXAMPLES, PREVIEW = 3, 80  # samples shown for each domain, characters of each
TOKENS_AT_ONCE = 4096

Report = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sources: are their gradients told apart?"""

    first: str
    second: str
    mmd_squared: float | None
    separation: float | None  # MMD^2 over the spread of single samples
    p_value: float  # Holm-corrected


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the model: how far apart sources are in its gradients, over all pairs."""

    name: str
    mean_separation: float | None
    farthest: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """A sample near its domain's centroid."""

    domain: int
    source: str
    document: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found."""

    model: str
    corpus: str
    split: Split
    seq_len: int
    rows: dict[str, int]  # by source
    loss_nats: dict[str, float]  # by source
    pairs: list[Pair]
    parts: list[Part]
    nmi: float
    purity: float
    graph: DomainGraph
    examples: list[Example]
    notes: list[str]

    def save(self, folder: Path) -> None:
        """inspection.json, and the graph in every format."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "inspection.json", asdict(self))
        for ending in ("json", "graphml", "dot"):
            write_graph(self.graph, folder / f"graph.{ending}")


def inspect_model(request: Request, report: Report = lambda *_: None) -> Inspection:
    """Sketch, compare, cluster."""
    corpus = Corpus(request.corpus)
    report(f"loading {request.model}", 0, 0)
    model, seq_len, notes = open_subject(request, corpus)
    split, blocks, left_out = choose_rows(corpus, seq_len, request)
    sources = [s for s in corpus.sources if any(corpus.sources[b.source] == s for b in blocks)]
    source_N = torch.tensor([sources.index(corpus.sources[b.source]) for b in blocks])
    loss_N, part_of = part_sketches(model, blocks, request, report)
    sketch_NK = torch.stack(list(part_of.values())).sum(dim=0)
    report("comparing sources", 0, 0)
    whole = _compared(
        sketch_NK, source_N, len(sources), request.seed, max(999, 10 * len(sources) ** 2)
    )
    label_N, direction_NK = perceived(sketch_NK, request.domains, request.seed)
    nmi, purity = agreement(label_N, source_N, request.domains, len(sources))
    domains = partition(sketch_NK, label_N, request.domains)
    count_G, total_G = torch.bincount(source_N), torch.zeros(len(sources)).double()
    mean_G = total_G.index_add(0, source_N, loss_N.double()) / count_G
    return Inspection(
        model=request.model,
        corpus=str(corpus.directory),
        split=split,
        seq_len=seq_len,
        rows=dict(zip(sources, count_G.tolist(), strict=True)),
        loss_nats=dict(zip(sources, mean_G.tolist(), strict=True)),
        pairs=_pairs(whole, sources),
        parts=[
            _part(name, _compared(part_NK, source_N, len(sources), request.seed, 1), sources)
            for name, part_NK in part_of.items()
        ],
        nmi=float(nmi),
        purity=float(purity),
        graph=build_graph(domains, None, label_N, source_N, sources, step=0),
        examples=_examples(corpus, blocks, label_N, direction_NK, request.domains),
        notes=[*notes, *left_out],
    )


def part_sketches(
    model: PerSampleLoss, blocks: list[Block], request: Request, report: Report
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each row, and its sketch by part of the model; the parts add up to the sketch."""
    sketcher = Sketcher(
        model,
        mode="twopass",
        seed=request.seed,
        exclude=request.exclude,
        group_of=part_names(model),
    )
    token_NT = torch.from_numpy(np.stack([block.tokens() for block in blocks]))
    at_once = max(1, TOKENS_AT_ONCE // token_NT.shape[1])
    losses, parts, done = [], [], 0
    for loss_b, sketch in sketch_rows(sketcher, token_NT, at_once=at_once):
        losses.append(loss_b.cpu())
        parts.append({name: part_bK.float().cpu() for name, part_bK in sketch.groups.items()})
        done += len(loss_b)
        report("sketching", done, len(blocks))
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return torch.cat(losses), joined


def perceived(sketch_NK: Tensor, num_domains: int, seed: int) -> tuple[Tensor, Tensor]:
    """The domain of each row, and the directions that were clustered."""
    unit_NK = F.normalize(sketch_NK.double())
    direction_NK = F.normalize(unit_NK - unit_NK.mean(dim=0))
    cluster = KMeans(num_domains, normalise=True, restarts=16, min_size=1, seed=seed)
    return cluster(direction_NK, 0), direction_NK


def _compared(
    sketch_NK: Tensor, source_N: Tensor, num: int, seed: int, num_permutations: int
) -> PairwiseMMD:
    return pairwise_mmd(
        sketch_NK,
        source_N,
        num,
        num_permutations=num_permutations,
        seed=seed,
        estimator="unbiased",
    )


def _pairs(found: PairwiseMMD, sources: list[str]) -> list[Pair]:
    """Pairs of sources, those farthest apart first."""
    pairs = [
        Pair(
            sources[g],
            sources[h],
            _known(found.mmd_squared_GG[g, h]),
            _known(found.separation_GG[g, h]),
            float(found.p_value_GG[g, h]),
        )
        for g, h in combinations(range(len(sources)), 2)
    ]
    return sorted(pairs, key=lambda pair: -(pair.separation or 0.0))


def _part(name: str, found: PairwiseMMD, sources: list[str]) -> Part:
    pairs = _pairs(found, sources)
    known = [pair.separation for pair in pairs if pair.separation is not None]
    farthest = (pairs[0].first, pairs[0].second) if pairs else ("", "")
    return Part(name, sum(known) / len(known) if known else None, farthest)


def _known(value: Tensor) -> float | None:
    number = float(value)
    return number if isfinite(number) else None


def _examples(
    corpus: Corpus, blocks: list[Block], label_N: Tensor, direction_NK: Tensor, num_domains: int
) -> list[Example]:
    """The samples nearest each domain's centroid."""
    centroid_MK = domain_means(direction_NK, label_N, num_domains)
    near_NM = closeness(direction_NK, centroid_MK, normalise=True)
    readable = corpus.manifest.tokenizer.file is not None
    examples = []
    for domain, near_N in enumerate(near_NM.T.tolist()):
        own = [n for n, label in enumerate(label_N.tolist()) if label == domain]
        for n in sorted(own, key=lambda n: (-near_N[n], n))[:EXAMPLES]:
            place: dict[str, Any] = blocks[n].place()
            text = " ".join(blocks[n].text(corpus).split())[:PREVIEW] if readable else None
            examples.append(Example(domain, place["source"], place["document"], text))
    return examples
