"""What sets domains apart: telling words, sources, typical samples.

Computed when somebody reads, from what a run has recorded: samples.jsonl has the domain of each
sample, and the sampler, a pure function, finds its text again. Domains of one batch do not last;
the probe rows do, so the clusters of the last probe are described instead.

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
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dograph.data.corpus import Block, Corpus
from dograph.data.sampler import WeightLog
from dograph.errors import DographError, RunError
from dograph.eval.gradients import Probe, probed_steps, read_probe
from dograph.eval.recorded import domains_last, labels_of_steps
from dograph.records import read_record, read_steps
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory

RECENT, TOKENS = 512, 512  # samples that words and sources are counted over, and tokens of each
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
    typical: list[Block]  # probe rows nearest the centroid, then samples of the largest weight

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
    config, probe = run.config(), last_probe(run, step)
    if corpus is None or corpus.manifest.tokenizer.file is None:
        return {}
    labels, blocks, near = list[int](), list[Block](), dict[int, list[Block]]()
    if probe is not None:
        strata, length = {own.entry.stratum: own for own in corpus.validation}, config.data.seq_len
        blocks = [Block(0, strata[row["stratum"]], int(row["row"]), length) for row in probe.rows]
        labels = probe.label_N.tolist()
        near = {j: [blocks[n] for n in own] for j, own in probe.nearest.items()}
    if domains_last(config):
        size, made = config.batches.largest, read_steps(run.samples_file)
        known = (one for _, one in made if step is None or one <= step)
        steps = deque(known, maxlen=max(1, RECENT // size))
        samples = labelled_samples(run, corpus, steps)[:: max(1, size // RECENT)]
        if samples:  # else the probe rows are counted
            labels, blocks = [one[1] for one in samples], [one[3] for one in samples]
        for _, domain, _, block in sorted(samples, key=lambda one: -one[2]):
            near.setdefault(domain, []).append(block)
    return _profiles(corpus, labels, blocks, near)


def labelled_samples(
    run: RunDirectory, corpus: Corpus, steps: Collection[int]
) -> list[tuple[int, int, float, Block]]:
    """Step, domain, weight (1 is equal) and block of the samples of some steps, if recorded."""
    config, found = run.config(), list[tuple[int, int, float, Block]]()
    try:
        sampler = open_sampler(config, corpus)
        sampler.log = WeightLog.load(run.weights_file, sampler.names)
    except (DographError, OSError):  # what was drawn is not known
        return []
    for step, row in sorted(labels_of_steps(run, steps).items()):
        ids = sampler.draw(step - 1)
        weights = row["weight"] or [1.0] * len(ids)
        for i, domain in enumerate(row["domain"] or []):
            stratum, index = corpus.train[int(ids.stratum_B[i])], int(ids.block_B[i])
            block = Block(0, stratum, index, config.data.seq_len)
            found.append((step, domain, weights[i], block))
    return found


def last_probe(run: RunDirectory, step: int | None) -> Probe | None:
    """The newest probe up to `step`; None if there is none, or if it knows no domains."""
    with suppress(RunError):
        steps = [probed for probed in probed_steps(run.path) if step is None or probed <= step]
        probe = read_probe(run.path, steps[-1]) if steps else None
        return probe if probe and probe.nearest else None
    return None


def _profiles(
    corpus: Corpus, labels: list[int], blocks: list[Block], near: dict[int, list[Block]]
) -> dict[int, DomainProfile]:
    texts, sources = [], [block.stratum.entry.source for block in blocks]
    for block in blocks:
        start = block.index * block.seq_len
        texts.append(corpus.text(block.stratum, start, start + min(block.seq_len, TOKENS)))
    words, every, profiles = telling_words(texts, labels), Counter(sources), {}
    for j, own_words in words.items():
        own = Counter(source for source, k in zip(sources, labels, strict=True) if k == j)
        both = [(name, n / own.total(), every[name] / len(blocks)) for name, n in own.items()]
        more = sorted((row for row in both if row[1] > row[2]), key=lambda row: row[2] - row[1])
        shares = [f"{name} {share:.0%} ({of_all:.0%})" for name, share, of_all in more[:SOURCES]]
        profiles[j] = DomainProfile(own.total(), own_words, shares, near.get(j, [])[:TYPICAL])
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
