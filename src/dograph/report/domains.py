"""What a page shows of a run's domains: probes, graphs, weights, drift, example texts.

Shapes: N probe rows, M domains, K sketch.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F

from dograph.config import RunConfig
from dograph.data.corpus import Corpus, StratumTokens
from dograph.data.sampler import WeightLog
from dograph.errors import DographError, RunError
from dograph.eval.gradients import Probe, probe_pca, probed_steps, read_probe
from dograph.eval.recorded import domains_last, labels_of_steps
from dograph.report.charts import (
    BarChart,
    BlockGroup,
    LegendKeys,
    LineChart,
    PageText,
    ScatterChart,
    Series,
    Shown,
)
from dograph.report.series import Columns, curve, read_json, rounded
from dograph.train.assembly import open_sampler
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

ROUNDS = 60  # of pushing apart nodes that overlap
EXAMPLES = 5  # texts shown of a domain
TEXT = 480  # characters of each
SAMPLED = 4  # graphs that have texts of their own, where domains do not last
MADE_OF = 6  # graphs whose domains are taken apart
LASTING = "a number is one domain throughout"
RANKED = "numbers are ranks by weight in each step, 0 the heaviest"
BASE, REACH = 0.06, 0.34  # radius of a node: at least, and what a share of 1 adds


@dataclass(frozen=True, slots=True)
class CorpusText:
    """Text of the corpus; `cut` says that it went on."""

    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class ExampleText:
    """A row near its domain's centroid; `text` is an index into the page's texts."""

    source: str
    document: int
    text: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProbe:
    """The probe rows at one step: coordinates by basis, source and domain of each."""

    step: int
    last: list[list[float]]  # x and y on the axes of the last probe
    own: list[list[float]]  # x and y on its own axes
    explained: list[list[float]]  # share of variance of both axes: on the last's, on its own
    label: list[int]  # -1 while no domains are known
    examples: dict[str, list[ExampleText]]  # by domain


@dataclass(frozen=True, slots=True)
class Placed:
    """A domain graph with a place for every node; texts where domains are those of a batch."""

    step: int
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    examples: dict[str, list[ExampleText]] | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a domain at one probe is what it was at the one before, and what it became."""

    step: int
    rows: int
    kept: float | None  # rows of both over rows of either, this probe and the one before
    cosine: float | None  # of its centroid to that of the last probe


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainsShown:
    """What the model perceives in the course of a run."""

    has_identity: bool
    numbering: str  # what the number in a domain's name says
    sources: list[str]
    source_N: list[int]  # of each probe row
    probes: list[ShownProbe]
    scatters: list[ScatterChart]
    graphs: list[Placed]
    lines: list[LineChart]  # weights, shares
    made_of: list[Shown]  # sources of every domain
    drift: dict[str, list[Drift]]
    notes: list[str]


def spread_out(distance_MM: np.ndarray) -> np.ndarray:
    """Places in the plane whose distances are near the given ones (classical scaling)."""
    num = len(distance_MM)
    if num == 0:
        return np.zeros((0, 2))
    centre_MM = np.eye(num) - 1 / num
    value_M, vector_MM = np.linalg.eigh(-0.5 * centre_MM @ distance_MM**2 @ centre_MM)
    top = np.argsort(value_M)[::-1][:2]
    place_M2 = vector_MM[:, top] * np.sqrt(np.maximum(value_M[top], 0))
    if place_M2.shape[1] < 2:
        place_M2 = np.column_stack([place_M2, np.zeros(num)])
    largest = np.abs(place_M2).max()
    if largest == 0:
        angle_M = 2 * np.pi * np.arange(num) / num
        return np.column_stack([np.cos(angle_M), np.sin(angle_M)]) * (num > 1)
    return np.asarray(place_M2 / largest)


def turn_to(place_M2: np.ndarray, like_M2: np.ndarray) -> np.ndarray:
    """The turn or mirror image (2 x 2) that brings a picture nearest another (Procrustes)."""
    left, _, right = np.linalg.svd(place_M2.T @ like_M2)
    return np.asarray(left @ right)


def pushed_apart(place_M2: np.ndarray, radius_M: np.ndarray) -> np.ndarray:
    """Move nodes that overlap away from each other, as little as it takes."""
    place_M2, num = place_M2.copy(), len(place_M2)
    for _ in range(ROUNDS):
        moved = False
        for i in range(num):
            for j in range(i + 1, num):
                apart = place_M2[j] - place_M2[i]
                length = float(np.hypot(*apart))
                lacking = radius_M[i] + radius_M[j] - length
                if lacking <= 1e-6:
                    continue
                angle = 2.4 * (i + num * j)  # alike places part in fixed, differing directions
                way = apart / length if length > 1e-9 else np.array([np.cos(angle), np.sin(angle)])
                place_M2[i] -= way * lacking / 2
                place_M2[j] += way * lacking / 2
                moved = True
        if not moved:
            break
    return place_M2


class Texts:
    """Texts of a page, each once, whichever runs show it."""

    def __init__(self) -> None:
        self.found: list[CorpusText] = []
        self._index: dict[tuple[Any, ...], int] = {}

    def add(self, corpus: Corpus, stratum: StratumTokens, row: int, seq_len: int) -> int | None:
        """The number of a block's text; None where the corpus holds tokens alone."""
        if corpus.manifest.tokenizer.file is None:
            return None
        key = (corpus.directory, stratum.entry.file, row, seq_len)
        if key not in self._index:
            text = corpus.text(stratum, row * seq_len, (row + 1) * seq_len)
            self._index[key] = len(self.found)
            self.found.append(CorpusText(text[:TEXT], len(text) > TEXT))
        return self._index[key]


def with_samples(
    run: RunDirectory, config: RunConfig, corpus: Corpus, graphs: list[Placed], texts: Texts
) -> list[Placed]:
    """Some of the graphs, the last one among them, with samples of their batch.

    Domains that last are shown by the probe rows nearest their centre. Those of one batch have no
    place for other rows: they are shown by its first samples that were in them.
    """
    chosen = {round(k * (len(graphs) - 1) / (SAMPLED - 1)) for k in range(SAMPLED)}
    kept = labels_of_steps(run, {graphs[k].step for k in chosen if graphs})
    try:
        sampler = open_sampler(config, corpus)
        sampler.log = WeightLog.load(run.weights_file, sampler.names)
    except (DographError, OSError):
        return graphs
    found: dict[int, dict[str, list[ExampleText]]] = {}
    for step in (step for step, sample in kept.items() if sample["domain"] is not None):
        ids, own = sampler.draw(step - 1), found.setdefault(step, {})
        for i, domain in enumerate(kept[step]["domain"]):
            shown = own.setdefault(str(domain), [])
            if len(shown) < EXAMPLES:
                stratum = corpus.train[int(ids.stratum_B[i])]
                text = texts.add(corpus, stratum, int(ids.block_B[i]), config.data.seq_len)
                shown.append(ExampleText(stratum.entry.source, int(ids.document_B[i]), text))
    return [replace(graph, examples=found.get(graph.step)) for graph in graphs]


def domains_of(
    run: RunDirectory,
    config: RunConfig,
    columns: Columns,
    corpus: Corpus | None,
    buckets: int,
    texts: Texts,
) -> DomainsShown | None:
    """Everything on domains, None for a run that knows none."""
    found: list[Any] = read_metrics(run.graph_file)
    notes: list[str] = []
    probes: list[Probe] = []
    try:
        if any(run.probes.glob("step-*.json")):
            probes = [read_probe(run.path, step) for step in probed_steps(run.path)]
    except RunError as error:
        notes.append(str(error))
    if not probes and not found and not columns.middles("domains/", "/weight"):
        return None
    lasting = domains_last(config)
    if not lasting:
        notes.append(
            "Domains are found anew in every batch and have no identity over steps. "
            f"Their {RANKED}: domain 0 of one step and domain 0 of another are not the same domain."
        )
    shown: list[ShownProbe] = []
    if probes and min(probes[-1].sketch_NK.shape) > 1:  # one row lies nowhere
        if corpus is None:
            notes.append(f"the run's corpus is not at {config.data.corpus}: no texts are shown")
        elif corpus.manifest.tokenizer.file is None:
            notes.append("the corpus holds tokens alone, so no texts are shown")
        shown = _shown(run, probes, corpus, config.data.seq_len, texts, lasting=lasting)
    graphs = placed(found)
    if corpus is not None and not lasting:
        graphs = with_samples(run, config, corpus, graphs, texts)
    named = {name for graph in found for node in graph["nodes"] for name in node["sources"]}
    sources = probes[-1].sources if probes else sorted(named)
    return DomainsShown(
        has_identity=lasting,
        numbering=LASTING if lasting else RANKED,
        sources=sources,
        source_N=probes[-1].source_N.tolist() if probes else [],
        probes=shown,
        scatters=scatters_of(sources, shown, lasting=lasting),
        graphs=graphs,
        lines=lines_of(columns, buckets, lasting=lasting),
        made_of=made_of(sources, graphs, lasting=lasting),
        drift=drift_of(probes) if lasting else {},
        notes=notes,
    )


def lines_of(columns: Columns, buckets: int, *, lasting: bool) -> list[LineChart]:
    """Weights and shares of domains over steps."""
    note = LASTING if lasting else f"{RANKED}: no line is one domain"
    charts = []
    for part, title, y_name in (
        ("weight", "Weights of domains", "weight of the domain"),
        ("share", "Shares of the samples", ""),
    ):
        series = []
        for name in columns.middles("domains/", f"/{part}"):
            own = curve(*columns.get(f"domains/{name}/{part}"), buckets)
            series.append(replace(Series.of(own, f"domain {name}", int(name)), dots=False))
        few = len(series) <= 4
        charts.append(LineChart(title, series, note, y_name=y_name, faint=few))
    return charts


def scatters_of(
    sources: list[str], probes: list[ShownProbe], *, lasting: bool
) -> list[ScatterChart]:
    """The same rows by source and by domain.

    Rows that were clustered among themselves are in no domain of the mixer.
    """
    num = 1 + max((j for probe in probes for j in probe.label), default=-1)
    group, by, assigned = "domain", "by domain", "as the mixer would assign them"
    if not lasting:
        group, by = "cluster", "clustered among themselves"
        assigned = (
            "found anew at every probe, as in a batch; these clusters are no domains of the graph, "
            "and their numbers are not ranks"
        )
    title, note = "Gradients of held-out rows, by source", "principal components of the directions"
    names = [f"{group} {j}" for j in range(num)]
    found = assigned if num else "no domains known yet"
    return [
        ScatterChart("pca-source", title, f"{note} of their sketches", sources, group, True),
        ScatterChart("pca-domain", f"The same rows, {by}", found, names, group),
    ]


def made_of(sources: list[str], graphs: list[Placed], *, lasting: bool) -> list[Shown]:
    """A chart of bars for each domain, one bar a graph: its sources from first to last."""
    if not graphs:
        return []
    told: list[Shown] = [PageText("What domains are made of, over time", "heading")]
    chosen, last = graphs, len(graphs) - 1
    if len(graphs) > MADE_OF:
        chosen = [graphs[round(k * last / (MADE_OF - 1))] for k in range(MADE_OF)]
        told.append(PageText(f"{MADE_OF} of {len(graphs)} graphs are shown, evenly spaced."))
    counted = "samples of the last batches, by source"
    if not lasting:
        counted = f"samples of the step's batch, by source; {RANKED}"
        counted += ": the bars of a chart are not one domain"
    labels = part_labels(sources, chosen)
    bars: dict[int, list[tuple[str, list[tuple[int, float]]]]] = {}
    for graph in chosen:
        for node in graph.nodes:
            own = bars.setdefault(node["domain"], [])
            own.append((f"step {graph.step}", node_parts(node, labels)))
    charts = [
        BarChart(f"Domain {domain}", labels, bars[domain], whole=True) for domain in sorted(bars)
    ]
    return [*told, PageText(counted), LegendKeys(labels), BlockGroup(charts, grid=True)]


def part_labels(sources: list[str], graphs: list[Placed]) -> list[str]:
    """Sources that are probed, and others that are in a domain."""
    nodes = [node for graph in graphs for node in graph.nodes]
    return list(dict.fromkeys([*sources, *(name for node in nodes for name in node["sources"])]))


def node_parts(node: dict[str, Any], labels: list[str]) -> list[tuple[int, float]]:
    return sorted((labels.index(name), count) for name, count in node["sources"].items())


def _shown(
    run: RunDirectory,
    probes: list[Probe],
    corpus: Corpus | None,
    seq_len: int,
    texts: Texts,
    *,
    lasting: bool,
) -> list[ShownProbe]:
    """Coordinates on the axes of the last probe, and on each one's own.

    Domains that last have as examples the rows that the probe names as nearest their centre.
    """
    strata = {s.entry.stratum: s for s in corpus.validation} if corpus is not None else {}
    on_last, on_own = probe_pca(run.path, basis="last").at, probe_pca(run.path, basis="own").at
    shown = []
    for probe in probes:
        both = [on_last[probe.step], on_own[probe.step]]
        told = read_json(run.probe(probe.step))
        places = {(row["source"], row["row"], row["document"]): row for row in told["rows"]}
        examples: dict[str, list[ExampleText]] = {}
        for domain in (told["domains"] or []) if lasting else []:
            own = examples.setdefault(str(domain["domain"]), [])
            for near in domain["nearest"][:EXAMPLES]:
                place = places[near["source"], near["row"], near["document"]]
                stratum, text = strata.get(place["stratum"]), None
                if corpus is not None and stratum is not None:
                    text = texts.add(corpus, stratum, near["row"], seq_len)
                own.append(ExampleText(near["source"], near["document"], text))
        shown.append(
            ShownProbe(
                step=probe.step,
                last=[rounded(column, 4) for column in both[0].coordinate_NC.T.numpy()],
                own=[rounded(column, 4) for column in both[1].coordinate_NC.T.numpy()],
                explained=[rounded(one.explained_C.numpy(), 4) for one in both],
                label=probe.label_N.tolist(),
                examples=examples,
            )
        )
    return shown


def drift_of(probes: list[Probe]) -> dict[str, list[Drift]]:
    """By domain: how many rows it has, how many it kept, and its centroid beside the last one."""
    known = [probe for probe in probes if bool((probe.label_N >= 0).any())]
    found: dict[str, list[Drift]] = {}
    if not known:
        return found
    for domain in sorted({j for probe in known for j in probe.label_N.tolist() if j >= 0}):
        rows, before_N = [], None
        last_K = _centroid(known[-1], domain)
        for probe in known:
            own_N = (probe.label_N == domain).numpy()
            either = 0 if before_N is None else int((own_N | before_N).sum())
            kept = float((own_N & before_N).sum() / either) if either else None
            own_K, cosine = _centroid(probe, domain), None
            norm = float(np.linalg.norm(own_K) * np.linalg.norm(last_K))
            if norm:
                cosine = round(float(own_K @ last_K) / norm, 4)
            rows.append(Drift(probe.step, int(own_N.sum()), kept, cosine))
            before_N = own_N
        found[str(domain)] = rows
    return found


def _centroid(probe: Probe, domain: int) -> np.ndarray:
    """Mean direction of the domain's rows, that of all rows being the origin; 0 of no rows."""
    own_N = probe.label_N == domain
    direction_NK = F.normalize(probe.sketch_NK.double())
    if not bool(own_N.any()):
        return np.zeros(direction_NK.shape[1])
    return np.asarray((direction_NK[own_N].mean(dim=0) - direction_NK.mean(dim=0)).numpy())


def placed(graphs: list[dict[str, Any]]) -> list[Placed]:
    """Graphs with places: distances are those between the domains' mean gradients.

    Each picture is turned to lie nearest the one before, so that what moves has moved.
    """
    found: list[Placed] = []
    before: dict[int, np.ndarray] = {}
    for graph in graphs:
        names = [node["domain"] for node in graph["nodes"]]
        index = {name: i for i, name in enumerate(names)}
        distance_MM = np.zeros((len(names), len(names)))
        for edge in graph["edges"]:
            i, j = index[edge["first"]], index[edge["second"]]
            distance_MM[i, j] = distance_MM[j, i] = max(edge["mmd_squared"], 0.0) ** 0.5
        place_M2 = spread_out(distance_MM)
        both = [name for name in names if name in before]
        if len(both) > 1:
            own = np.array([place_M2[index[name]] for name in both])
            like = np.array([before[name] for name in both])
            place_M2 = place_M2 @ turn_to(own, like)
        before = {name: place_M2[index[name]] for name in names}
        # Of the larger of both circles, that of the share and that of the weight.
        larger = [max(float(n["share"]), float(n["weight"] or 0.0)) for n in graph["nodes"]]
        radius_M = np.array([node_radius(share) for share in larger])
        apart_M2 = pushed_apart(place_M2, 1.15 * radius_M)
        nodes = [
            _shortened(node) | {"x": round(float(x), 3), "y": round(float(y), 3)}
            for node, (x, y) in zip(graph["nodes"], apart_M2, strict=True)
        ]
        edges = [_shortened(edge) for edge in graph["edges"]]
        found.append(Placed(graph["step"], nodes, edges))
    return found


def node_radius(share: float) -> float:
    return BASE + REACH * math.sqrt(max(share, 0.0))


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
