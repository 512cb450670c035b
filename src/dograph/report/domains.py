"""The domains of one run on a page: probes, domain graphs, weights, example texts.

Shapes: N probe rows, M domains.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import orthogonal_procrustes

from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.eval.describe import DomainProfile, describe_domains, excerpt
from dograph.eval.gradients import Probe, principal, probed_steps, read_probe
from dograph.eval.recorded import domains_last, parse_graph
from dograph.records import finite, read_lines, step_of, unpacked
from dograph.report.charts import (
    Entry,
    LineChart,
    PageBlock,
    PageItem,
    PageTable,
    ScatterChart,
)
from dograph.report.series import Columns, OpenRun, curve, rounded

ROUNDS = 60  # of moving overlapping nodes apart
MOST_GRAPHS = 100
LASTING = "a number is one domain throughout the run"
RANKED = "numbers are ranks by weight in each step, 0 the largest weight"
NO_IDENTITY = (
    "Domains are computed for each batch separately and have no identity over steps. Their "
    f"{RANKED}: domain 0 of one step and domain 0 of another are different domains. So no chart "
    "here follows a domain over steps; the graph shows the domains of one batch at a time."
)
DESCRIBED = (
    "Samples are the rows of the last probe. Words: in more of its samples than in those of all "
    "others together, by at least 3 standard errors. Sources: with a larger share here than in "
    "all samples (in brackets)."
)
CLUSTERED = " Domains of one batch do not last, so these are clusters of the rows."
BASE, REACH = 0.06, 0.34  # a node's radius is BASE + REACH sqrt(share); as in domains.js


@dataclass(frozen=True, slots=True)
class ProbeView:
    """The probe rows at one step: coordinates and domain labels."""

    step: int
    place: list[list[float]]  # x and y on the principal axes of this probe
    explained: list[float]  # share of the variance on each of the two axes
    label: list[int]  # -1 before there are domains


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A domain graph with coordinates."""

    step: int
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainsView:
    """Everything the page shows of a run's domains."""

    numbering: str  # what a domain's number means, if it is not one domain throughout the run
    sources: list[str]
    source_N: list[int]  # of each probe row
    probes: list[ProbeView]
    scatters: list[ScatterChart]
    graphs: list[PlacedGraph]
    names: dict[str, str]  # of domains that last: their most telling words
    lines: list[LineChart]  # weights and shares over steps, of domains that last
    described: list[PageItem]  # what sets domains apart
    notes: list[str]


Profiles = dict[int, DomainProfile]


def name_of(domain: int, profiles: Profiles, kind: str = "domain") -> str:
    """Its number, and its most telling words where there are some."""
    words = profiles[domain].name if domain in profiles else ""
    return f"{kind} {domain}: {words}" if words else f"{kind} {domain}"


def domains_of(run: OpenRun, buckets: int) -> DomainsView | None:
    """The domains of a run; None if its mixer has none."""
    columns, corpus = run.columns, run.corpus
    graphs = recorded_graphs(run)
    notes, probes, views = list[str](), list[Probe](), list[ProbeView]()
    has_probes = any(run.files.probes.glob("step-*.json"))
    for step in probed_steps(run.path) if has_probes else []:
        try:
            probes.append(read_probe(run.path, step))
        except RunError as error:
            run.skipped.notes.append(str(error))
    if not probes and not graphs and not columns.between("domains/", "/weight"):
        return None
    lasting = domains_last(run.config)
    if not lasting:
        notes.append(NO_IDENTITY)
    if probes and min(probes[-1].sketch_NK.shape) > 1:  # one row has no principal components
        if corpus is None:
            where = run.config.data.corpus
            notes.append(f"The run's corpus is not at {where}, so no texts are shown.")
        elif corpus.manifest.tokenizer.file is None:
            notes.append("The corpus has tokens but no tokenizer, so no texts are shown.")
        for probe in probes:
            coordinate_NC, explained_C = principal(probe.sketch_NK)
            place = [rounded(xs, 4) for xs in coordinate_NC.T.numpy()]
            # The numbers of another probe's clusters mean other clusters.
            label = (probe if lasting else probes[-1]).label_N.tolist()
            explained = rounded(explained_C.numpy(), 4)
            views.append(ProbeView(probe.step, place, explained, label))
    sources = probes[-1].sources if probes else []
    profiles = describe_domains(run.files, corpus)
    return DomainsView(
        numbering="" if lasting else RANKED,
        sources=sources,
        source_N=probes[-1].source_N.tolist() if probes else [],
        probes=views,
        scatters=scatter_charts(sources, views, profiles, lasting=lasting),
        graphs=graphs,
        names={str(j): own.name for j, own in profiles.items() if lasting},
        lines=domain_lines(columns, buckets, profiles) if lasting else [],
        described=profile_blocks(corpus, profiles, lasting=lasting),
        notes=notes,
    )


def recorded_graphs(run: OpenRun) -> list[PlacedGraph]:
    """All of them, or about MOST_GRAPHS evenly spaced ones with the last."""
    places: dict[int, np.ndarray] = {}
    every, last = run.config.eval.every, run.columns.last_step
    stride = every * math.ceil(last / MOST_GRAPHS / max(every, 1))

    def is_shown(line: bytes) -> bool:
        step = step_of(line) or 0
        return stride <= every or step % stride == 0 or step > last - every

    def placed(values: dict[str, Any]) -> PlacedGraph:
        parse_graph(finite(values))  # raises if it is damaged
        return place_graph(unpacked(values), places)

    return list(read_lines(run.files.graph_file, placed, run.skipped, wanted=is_shown))


def domain_lines(columns: Columns, buckets: int, profiles: Profiles) -> list[LineChart]:
    """Weights and shares of domains that last."""
    titles = {"weight": "Domain weights", "share": "Share of samples by domain"}
    charts = []
    for part, title in titles.items():
        series = []
        for name in columns.between("domains/", f"/{part}"):
            own = curve(*columns.get(f"domains/{name}/{part}"), buckets)
            index = int(name)
            series.append(replace(own, name=name_of(index, profiles), index=index, dots=False))
        faint = len(series) <= 4
        y_name = f"domain {part}"
        charts.append(LineChart(title, series, LASTING, y_name=y_name, zero=True, faint=faint))
    return charts


def scatter_charts(
    sources: list[str], probes: list[ProbeView], profiles: Profiles, *, lasting: bool
) -> list[ScatterChart]:
    """The same rows coloured by source and by domain.

    Domains of one batch cannot be assigned to probe rows, so the rows are clustered separately.
    """
    group, by, note = "domain", "by domain", "assigned as the mixer would assign them"
    if not lasting:
        group, by = "cluster", "clustered separately"
        note = (
            "probe rows clustered at the last probe, as a batch is; a row has one colour at all "
            "steps; clusters are not the domains of the graph, and their numbers are not ranks"
        )
    num = 1 + max((j for probe in probes for j in probe.label), default=-1)
    names = [name_of(j, profiles, group) for j in range(num)]
    title = "Gradients of held-out rows, by source"
    pca = "principal components of normalized gradient sketches"
    return [
        ScatterChart("pca-source", title, pca, sources, group, True),
        ScatterChart("pca-domain", f"The same rows, {by}", note if num else "", names, group),
    ]


def profile_blocks(corpus: Corpus | None, profiles: Profiles, *, lasting: bool) -> list[PageItem]:
    """What sets each domain or cluster apart, as a table, and its typical texts."""
    rows, folded, kind = list[list[Entry]](), list[PageItem](), "domain" if lasting else "cluster"
    for j, own in profiles.items():
        words = ", ".join(own.words) or "none stands out"
        rows.append([str(j), str(own.samples), words, ", ".join(own.sources)])
        typical = [{**b.place(), "text": excerpt(b.text(corpus))} for b in own.typical if corpus]
        title = name_of(j, profiles, kind)
        folded.append(PageBlock("folded", [PageBlock("samples", typical)], title))
    texts = ("words", "sources")
    blocks: list[PageItem] = [
        PageBlock("heading", f"What sets {kind}s apart"),
        PageBlock("soft", DESCRIBED + ("" if lasting else CLUSTERED)),
        PageTable("what sets them apart", [kind, "samples", *texts], rows, left=texts),
        PageBlock("folded", folded, "Typical texts", "typical"),
    ]
    return blocks if rows else []


def place_graph(graph: dict[str, Any], places: dict[int, np.ndarray]) -> PlacedGraph:
    """The graph with coordinates that approximate the distances between mean gradients.

    It is rotated towards the `places` of the one before, so that a node that moves has really
    moved, and they are replaced by its own.
    """
    index = {node["domain"]: i for i, node in enumerate(graph["nodes"])}
    distance_MM = np.zeros((len(index), len(index)))
    for edge in graph["edges"]:
        i, j = index[edge["first"]], index[edge["second"]]
        distance_MM[i, j] = distance_MM[j, i] = max(edge["mmd_squared"], 0.0) ** 0.5
    place_M2 = classical_scaling(distance_MM)
    both = [name for name in index if name in places]
    if len(both) > 1:
        own = np.array([place_M2[index[name]] for name in both])
        place_M2 = place_M2 @ orthogonal_procrustes(own, [places[name] for name in both])[0]
    # The larger of two circles: share and weight.
    radius = [node_radius(max(n["share"], n["weight"] or 0.0)) for n in graph["nodes"]]
    apart_M2 = move_apart(place_M2, 1.15 * np.array(radius))
    nodes, edges = ([_shortened(one) for one in graph[k]] for k in ("nodes", "edges"))
    for node, place in zip(nodes, apart_M2.round(3).tolist(), strict=True):
        node["x"], node["y"] = place
    places.clear()
    places.update({name: place_M2[i] for name, i in index.items()})
    return PlacedGraph(graph["step"], nodes, edges)


def classical_scaling(distance_MM: np.ndarray) -> np.ndarray:
    """Points in the plane whose distances approximate the given ones (classical scaling)."""
    num = len(distance_MM)
    centre_MM = np.eye(num) - 1 / max(num, 1)
    value_M, vector_MM = np.linalg.eigh(-0.5 * centre_MM @ distance_MM**2 @ centre_MM)
    top = np.argsort(value_M)[::-1][:2]
    place_M2 = np.zeros((num, 2))
    place_M2[:, : len(top)] = vector_MM[:, top] * np.sqrt(np.maximum(value_M[top], 0))
    largest = np.abs(place_M2).max(initial=0)
    return np.asarray(place_M2 / (largest or 1.0))  # 0: `move_apart` has to find places


def move_apart(place_M2: np.ndarray, radius_M: np.ndarray) -> np.ndarray:
    """Moves overlapping nodes apart, each pair by its overlap, until none overlap."""
    angle_M = 2.4 * np.arange(len(place_M2))  # nodes at one point move in different directions
    place_M2 = place_M2 + 1e-6 * np.column_stack([np.cos(angle_M), np.sin(angle_M)])
    for _ in range(ROUNDS):
        offset_MM2 = place_M2[:, None] - place_M2
        length_MM = np.linalg.norm(offset_MM2, axis=-1) + np.eye(len(place_M2))
        overlap_MM = np.maximum(radius_M[:, None] + radius_M - length_MM, 0)
        np.fill_diagonal(overlap_MM, 0)
        if overlap_MM.max(initial=0) < 1e-6:
            break
        place_M2 += (offset_MM2 * (overlap_MM / length_MM)[..., None]).sum(axis=1) / 2
    return place_M2


def node_radius(share: float) -> float:
    return BASE + REACH * math.sqrt(max(share, 0.0))


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
