"""Domain vectors for the mixer domain2vec, from K-means of hashed n-grams.

    python examples/domain_vectors.py data/mine data/target vectors.csv
    dograph train recipe.yaml mixer.name=domain2vec mixer.vectors=vectors.csv

The authors of Domain2Vec use a classifier of 260 meta-domains that is not public. This is a
stand-in: up to 1,000 training documents of each source are drawn, their token 1- and 2-grams hashed
into 1,024 features, and K-means groups them into meta-domains. A vector is the share of documents
nearest to each. The target is text like that which the model should be good at, prepared with the
same tokenizer (`dograph data prepare TEXT --tokenizer ... --out data/target`).

Shapes: N documents, F features, D meta-domains.
"""

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dograph.data.corpus import Corpus
from dograph.data.staging import pieces
from dograph.data.strata import CHUNK_DOCUMENTS, ngram_features, spherical_kmeans
from dograph.errors import ConfigError, DographError
from dograph.files import write_text
from dograph.progress import Progress
from dograph.rng import key64, stream

TARGET = "target"


def sampled_features(corpus: Corpus, sources: Sequence[str], number: int, seed: int) -> np.ndarray:
    """Features, (N, F), of at most `number` random training documents of these sources."""
    strata = [stratum for stratum in corpus.train if stratum.entry.source in sources]
    end_of = np.cumsum([stratum.entry.documents for stratum in strata])
    draws = stream(seed, "domain2vec", "documents", *sources)
    chosen_N = np.sort(draws.permutation(int(end_of[-1]))[:number])
    salt, parts = key64(seed, "domain2vec", "hash"), []
    for stratum, end in zip(strata, end_of, strict=True):
        first = end - stratum.entry.documents
        own_N = chosen_N[(chosen_N >= first) & (chosen_N < end)] - first
        chunks = pieces(own_N, CHUNK_DOCUMENTS)
        parts += [ngram_features(stratum, chunk_N, salt) for _, chunk_N in chunks]
    return np.concatenate(parts)


def domain_vectors(
    corpus: Corpus, target: Corpus, *, num_meta: int = 64, number: int = 1000, seed: int = 0
) -> dict[str, list[float]]:
    """The share of each source, and of the target, in each meta-domain."""
    if corpus.manifest.tokenizer.sha256 != target.manifest.tokenizer.sha256:
        raise ConfigError(
            f"{target.directory} has another tokenizer than {corpus.directory}; prepare it with "
            f"--tokenizer {corpus.manifest.tokenizer.name}"
        )
    if TARGET in corpus.sources:
        raise ConfigError(f'a source of {corpus.directory} is called "{TARGET}"; rename it')
    every = {source: (corpus, [source]) for source in corpus.sources}
    every[TARGET] = (target, target.sources)
    feature: dict[str, np.ndarray] = {}
    with Progress("{done}/{total} sources", len(every)) as progress:
        for name, (of, sources) in every.items():
            progress.update(len(feature), name)
            feature[name] = sampled_features(of, sources, number, seed)
        progress.update(len(every), f"K-means of {num_meta} meta-domains")
        fitted_NF = np.concatenate([own_NF for name, own_NF in feature.items() if name != TARGET])
        mean_F = fitted_NF.mean(axis=0)  # common to all documents
        unit_NF = fitted_NF - mean_F
        unit_NF /= np.maximum(np.linalg.norm(unit_NF, axis=1, keepdims=True), 1e-12)
        centre_DF = spherical_kmeans(unit_NF, num_meta, stream(seed, "domain2vec", "kmeans"))
    vectors = {}
    for name, own_NF in feature.items():
        nearest_N = ((own_NF - mean_F) @ centre_DF.T).argmax(axis=1)
        share_D = np.bincount(nearest_N, minlength=len(centre_DF)) / len(nearest_N)
        vectors[name] = share_D.tolist()
    return vectors


def write_vectors(path: Path, vectors: Mapping[str, Sequence[float]]) -> None:
    """The table that `mixer.vectors` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", *(f"meta {n}" for n in range(len(vectors[TARGET])))])
    writer.writerows([name, *vector] for name, vector in vectors.items())
    write_text(path, text.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="the corpus to mix, a prepared folder")
    parser.add_argument("target", type=Path, help="text of the target, a prepared folder")
    parser.add_argument("out", type=Path, help="the table to write, a CSV file")
    parser.add_argument("--meta-domains", type=int, default=64)
    parser.add_argument("--documents", type=int, default=1000, help="of each source")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        made = domain_vectors(
            Corpus(given.corpus),
            Corpus(given.target),
            num_meta=given.meta_domains,
            number=given.documents,
            seed=given.seed,
        )
    except DographError as error:
        parser.error(str(error))
    write_vectors(given.out, made)
    print(f"{given.out}: {len(made)} vectors of {len(made[TARGET])} meta-domains")
