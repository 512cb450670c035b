"""What sets domains apart: telling words, sources, typical samples.

Computed when somebody reads, from the rows of a run's last probe: the mixer's domains, or clusters
of the rows where domains are those of one batch and do not last.

Words are ranked by the log-odds ratio with an informative Dirichlet prior (Monroe, Colaresi and
Quinn 2008). With y the number of a domain's samples that have the word, a = PRIOR times the mean of
y over domains, n and A their sums over words:
    log odds = log((y + a) / (n + A - y - a)), and the same for all other domains together,
    z = difference of the two / sqrt(1 / (y + a) + 1 / (y_others + a)).
The prior keeps rare words from winning, and samples are counted, not occurrences: one text that
repeats a word does not name its domain. Words start with a letter.

Shapes: M domains, V words.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dograph.data.corpus import Block, Corpus
from dograph.errors import DographError, RunError
from dograph.eval.gradients import probed_steps, read_probe
from dograph.records import read_record
from dograph.train.run_dir import RunDirectory

TOKENS = 512  # of a row that words are counted over
PRIOR = 0.25
LEAST_Z, LEAST_SAMPLES = 3.0, 2  # of a telling word
WORDS, SOURCES, TYPICAL = 8, 3, 3  # shown of each domain
EXCERPT, LINES = 480, 12  # characters and lines of a text
_SPECIAL, _WORD = re.compile(r"<\|\w+\|>"), re.compile(r"[^\W\d_]\w*")


@dataclass(frozen=True, slots=True)
class DomainProfile:
    """What sets one domain apart from all others."""

    samples: int
    words: list[str]  # the most telling first
    sources: list[str]  # those it has more of, with their share and that of all samples
    typical: list[Block]  # rows nearest the centroid

    @property
    def name(self) -> str:
        return ", ".join(self.words[:2])


def excerpt(text: str) -> str:
    """The beginning of a text, up to the end of a line; a very long line ends at a word."""
    text = text.strip("\n")
    start = "\n".join(text.split("\n")[:LINES])
    if len(start) > EXCERPT:
        start = start[:EXCERPT]
        ends = (end for mark in "\n " if (end := start.rfind(mark)) > EXCERPT // 3)
        start = start[: next(ends, EXCERPT)]
    return text if start == text else f"{start.rstrip()} …"


def corpus_of(run: RunDirectory) -> Corpus | None:
    """The corpus that a run was trained on; None if it was moved or changed."""
    with suppress(DographError, OSError):
        corpus = Corpus(run.config().data.corpus)
        states = sorted(run.checkpoints.glob("step-*/state.json"))
        state = read_record(states[-1], dict) if states else None
        if state is None or state.get("corpus") == corpus.digest:
            return corpus
    return None


def describe_domains(
    run: RunDirectory, corpus: Corpus | None, step: int | None = None
) -> dict[int, DomainProfile]:
    """What sets domains (or clusters) apart after `step` steps; nothing if there are no texts."""
    probe = None
    with suppress(RunError):  # there are none, or it is damaged
        steps = [probed for probed in probed_steps(run.path) if step is None or probed <= step]
        probe = read_probe(run.path, steps[-1]) if steps else None
    if corpus is None or corpus.manifest.tokenizer.file is None or not (probe and probe.nearest):
        return {}
    strata = {own.entry.stratum: own for own in corpus.validation}
    length = run.config().data.seq_len
    blocks = [Block(strata[row["stratum"]], int(row["row"]), length) for row in probe.rows]
    sources, labels = [block.stratum.entry.source for block in blocks], probe.label_N.tolist()
    texts = [block.text(corpus, TOKENS) for block in blocks]
    every, profiles = Counter(sources), {}
    for j, words in telling_words(texts, labels).items():
        own = Counter(source for source, k in zip(sources, labels, strict=True) if k == j)
        both = [(name, n / own.total(), every[name] / len(blocks)) for name, n in own.items()]
        more = sorted((row for row in both if row[1] > row[2]), key=lambda row: row[2] - row[1])
        shares = [f"{name} {share:.0%} ({of_all:.0%})" for name, share, of_all in more[:SOURCES]]
        near = [blocks[n] for n in probe.nearest.get(j, [])[:TYPICAL]]
        profiles[j] = DomainProfile(own.total(), words, shares, near)
    return profiles


def telling_words(texts: Sequence[str], labels: Sequence[int]) -> dict[int, list[str]]:
    """The words that set each domain's texts apart from those of the others; maybe none."""
    words = [set(_WORD.findall(_SPECIAL.sub(" ", text))) for text in texts]
    names, domains = sorted(set[str]().union(*words)), sorted(set(labels))
    place = {name: v for v, name in enumerate(names)}
    count_MV = np.zeros((len(domains), len(names)))
    for own, label in zip(words, labels, strict=True):
        count_MV[domains.index(label), [place[name] for name in own]] += 1
    z_MV = np.where(count_MV >= LEAST_SAMPLES, log_odds_z(count_MV), 0.0)
    best_MV = np.argsort(-z_MV, axis=1, kind="stable")[:, :WORDS]
    rows = zip(domains, z_MV, best_MV, strict=True)
    return {label: [names[v] for v in best_V if z_V[v] >= LEAST_Z] for label, z_V, best_V in rows}


def log_odds_z(count_MV: np.ndarray) -> np.ndarray:
    """How many standard errors a word's log odds in a domain are above those in all others."""
    total_V = count_MV.sum(axis=0)
    prior_V = PRIOR * total_V / max(len(count_MV), 1)
    own_MV, other_MV = count_MV + prior_V, total_V - count_MV + prior_V

    def log_odds(value_MV: np.ndarray) -> np.ndarray:
        rest_MV = value_MV.sum(axis=1, keepdims=True) - value_MV
        return np.asarray(np.log(value_MV / np.maximum(rest_MV, 1e-9)))

    error_MV = np.sqrt(1 / own_MV + 1 / other_MV)
    return np.asarray((log_odds(own_MV) - log_odds(other_MV)) / error_MV)
