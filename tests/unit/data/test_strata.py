"""Strata: planted groups are found again, and no token or document is lost on the way."""

import hashlib
from pathlib import Path

import pytest

from dograph.data import embedded as planted
from dograph.data import strata
from dograph.data.corpus import Corpus, Manifest
from dograph.errors import CorpusError
from dograph.rng import stream
from token_corpora import documents_of, random_tokens, write_manifest, write_split


def planted_documents(kind, per_group, seed=0):
    """Documents of four planted groups in mixed order: token lists and the true groups."""
    place = {word: index for index, word in enumerate(planted.vocabulary())}
    texts = list(planted.planted_documents(kind, num_documents=per_group, num_words=300))
    order = stream(seed, "test").permutation(len(texts))
    tokens = [[place[word] for word in texts[i][1].split(" ")] for i in order]
    return tokens, [texts[i][0] for i in order]


@pytest.mark.parametrize("kind", ["unigram", "bigram"])
def test_planted_groups_inside_one_source_are_found_again(tmp_path, kind):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is the judge here")
    tokens, truth = planted_documents(kind, per_group=75)
    train, held_out = slice(0, 240), slice(240, None)
    manifest = write_manifest(
        tmp_path,
        [write_split(tmp_path, "train", "web", tokens[train])],
        [write_split(tmp_path, "validation", "web", tokens[held_out])],
    )
    divided = strata.split_into_strata(tmp_path, manifest, 4, seed=0)
    for entries, expected in [(divided.train, truth[train]), (divided.validation, truth[held_out])]:
        label = {
            record // 10: stratum
            for stratum, documents in documents_of(tmp_path, entries).items()
            for record, _ in documents
        }
        found = [label[index] for index in range(len(expected))]
        assert metrics.normalized_mutual_info_score(expected, found) > 0.9


def test_every_document_is_kept_once_and_in_order(tmp_path):
    splits = {
        ("train", "web"): random_tokens(700),
        ("train", "code"): random_tokens(30, seed=1),
        ("validation", "web"): random_tokens(40, seed=2),
        ("validation", "code"): random_tokens(3, seed=3),
    }
    entries = {key: write_split(tmp_path, *key, tokens) for key, tokens in splits.items()}
    manifest = write_manifest(
        tmp_path,
        [entry for (split, _), entry in entries.items() if split == "train"],
        [entry for (split, _), entry in entries.items() if split == "validation"],
    )
    before = {key: documents_of(tmp_path, [entry])[key[1]] for key, entry in entries.items()}
    divided = strata.split_into_strata(tmp_path, manifest, 5, seed=0)

    for split, new in [("train", divided.train), ("validation", divided.validation)]:
        for source in ["web", "code"]:
            mine = [entry for entry in new if entry.source == source]
            groups = documents_of(tmp_path, mine)
            merged = [document for group in groups.values() for document in group]
            assert sorted(merged) == before[split, source]
            assert all(group == sorted(group) for group in groups.values())  # records ascend
            assert all(len(group) > 0 for group in groups.values())
    for entry in [*divided.train, *divided.validation]:
        content = (tmp_path / entry.file).read_bytes()
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        assert len(content) == 2 * entry.tokens
    divided.write(tmp_path)
    assert Manifest.read(tmp_path) == divided
    assert Corpus(tmp_path).tokens_by_source()["web"] == sum(map(len, splits["train", "web"]))


def test_strata_are_numbered_by_size(tmp_path):
    manifest = write_manifest(tmp_path, [write_split(tmp_path, "train", "web", random_tokens(400))])
    divided = strata.split_into_strata(tmp_path, manifest, 6, seed=0)
    assert [entry.stratum for entry in divided.train] == [f"web/{k}" for k in range(6)]
    sizes = [entry.tokens for entry in divided.train]
    assert sizes == sorted(sizes, reverse=True)


def test_the_same_seed_gives_the_same_files(tmp_path):
    manifests = []
    for name in ["a", "b"]:
        (tmp_path / name).mkdir()
        entry = write_split(tmp_path / name, "train", "web", random_tokens(300))
        manifest = write_manifest(tmp_path / name, [entry])
        manifests.append(strata.split_into_strata(tmp_path / name, manifest, 4, seed=7))
    assert manifests[0] == manifests[1]


def test_a_validation_document_goes_where_its_copy_in_training_went(tmp_path):
    tokens = random_tokens(200)
    manifest = write_manifest(
        tmp_path,
        [write_split(tmp_path, "train", "web", tokens)],
        [write_split(tmp_path, "validation", "web", tokens[:60])],
    )
    divided = strata.split_into_strata(tmp_path, manifest, 4, seed=0)
    train, validation = (
        documents_of(tmp_path, entries) for entries in (divided.train, divided.validation)
    )
    assert len(validation) == 4
    for stratum, documents in validation.items():
        assert set(documents) <= set(train[stratum])


def test_small_and_uniform_sources_get_fewer_strata(tmp_path):
    manifest = write_manifest(
        tmp_path,
        [
            write_split(tmp_path, "train", "two", [[1, 2, 3], [400, 401]]),
            write_split(tmp_path, "train", "same", [[5, 6, 7]] * 20),
        ],
        [write_split(tmp_path, "validation", "orphan", [[1, 2]])],
    )
    divided = strata.split_into_strata(tmp_path, manifest, 4, seed=0)
    assert [entry.stratum for entry in divided.train] == ["two/0", "two/1", "same/0"]
    assert [entry.stratum for entry in divided.validation] == ["orphan"]
    assert documents_of(tmp_path, divided.validation) == {"orphan": [(0, (1, 2))]}


def test_a_token_file_used_in_place_is_copied_and_left_alone(tmp_path):
    (tmp_path / "corpus").mkdir()
    tokens = random_tokens(50)
    entry = write_split(tmp_path / "corpus", "train", "web", tokens)
    outside = tmp_path / "outside.bin"
    body = (tmp_path / "corpus" / entry.file).read_bytes()
    outside.write_bytes(b"\0" * 256 + b"\xff\xff" * 3 + body)
    (tmp_path / "corpus" / entry.file).unlink()
    entry = entry.model_copy(
        update={"file": str(outside.resolve()), "header_bytes": 256, "first_token": 3}
    )
    manifest = write_manifest(tmp_path / "corpus", [entry])
    divided = strata.split_into_strata(tmp_path / "corpus", manifest, 3, seed=0)
    found = documents_of(tmp_path / "corpus", divided.train)
    assert sorted(d for group in found.values() for d in group) == [
        (10 * index, tuple(document)) for index, document in enumerate(tokens)
    ]
    assert outside.read_bytes().endswith(body)
    assert all(not Path(entry.file).is_absolute() for entry in divided.train)


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path):
    tokens = random_tokens(30)
    manifest = write_manifest(
        tmp_path,
        [
            write_split(tmp_path, "train", "c4", tokens),
            write_split(tmp_path, "train.1", "c4", tokens).model_copy(
                update={"source": "other", "stratum": "other"}
            ),
        ],
    )
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CorpusError, match=r"c4\.train\.1\.(bin|npy)"):
        strata.split_into_strata(tmp_path, manifest, 2, seed=0)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}
