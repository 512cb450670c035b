"""Corpora that need no download: the demo corpus, with junk on request, and planted ones.

The demo corpus is real text from the Python installation, one source per kind of text.
`docstrings`, `bytecode`, `topics`, `unicode` and `tables` are in every CPython, `code` needs the
source files of the standard library, and `tests`, `mail` and `numbers` its test suite.
"""

import ast
import builtins
import dis
import locale
import math
import re
import sys
import sysconfig
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from encodings import aliases
from functools import cache
from html.entities import html5
from http import HTTPStatus
from importlib.abc import InspectLoader
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType
from typing import Any
from zipimport import zipimporter

import numpy as np

from dograph.errors import require_known
from dograph.rng import key64, stream

LIBRARY = Path(sysconfig.get_path("stdlib"))
MIN_SOURCE_CHARS = 50_000  # a smaller source has too little validation text, and is left out
SPLIT_CHARS = 8_000  # a longer text becomes several documents of whole lines
MIN_CHARS = 200  # a shorter text is left out
PACK_CHARS = 2_000  # short pieces are joined until they are this long

# Folders of the standard library that are not part of `code`: tables, generated text, and the test
# suites, which are a source of their own.
NOT_CODE = {"encodings", "entities", "idle_test", "pydoc_data", "test", "tests"}
HEADER_LINE = re.compile(r"^[ \t]*[A-Z][A-Za-z0-9-]*:[ \t]\S", re.MULTILINE)

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | _Definition


def demo_documents() -> Iterator[tuple[str, str]]:
    """Source and text of each document of the demo corpus: always the same for one Python."""
    for source, (max_chars, make) in SOURCES.items():
        texts = _bounded(make(), max_chars)
        if sum(map(len, texts)) >= MIN_SOURCE_CHARS:
            yield from ((source, text) for text in texts)


def embedded_documents(name: str, noise: bool, seed: int) -> Iterator[tuple[str, str]]:
    """Source and text of each document of an embedded corpus."""
    if name == "demo":
        return demo_documents()
    if name.startswith("junk"):
        return ((source, text) for source, text, _ in junk_documents(name))
    return planted_documents(name, noise=noise, seed=seed)


def without_docstrings(source: str, tree: ast.Module) -> str:
    """Python source without its docstrings, otherwise unchanged."""
    lines: list[str | None] = list(source.split("\n"))
    for node in ast.walk(tree):
        if not isinstance(node, _Documented) or ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
        head = (lines[first] or "").encode()[: docstring.col_offset].decode()
        tail = (lines[last] or "").encode()[docstring.end_col_offset :].decode()
        if head.strip() or tail.strip():
            continue  # other code is on the same line
        lines[first : last + 1] = [None] * (last + 1 - first)
        if len(node.body) == 1 and not isinstance(node, ast.Module):
            lines[first] = f"{head}pass"
    return "\n".join(line for line in lines if line is not None)


def _docstrings() -> Iterator[str]:
    # The built-in types have theirs compiled in, so they need no source file.
    for name, value in sorted(vars(builtins).items()):
        if isinstance(value, type):
            members: dict[str, Any] = {f"{name}.{k}": v for k, v in sorted(vars(value).items())}
            texts = {key: member.__doc__ for key, member in ({name: value} | members).items()}
            yield from _packed(f"{k}\n\n{t}" for k, t in texts.items() if isinstance(t, str))
    for module, _, tree in _modules():
        yield from _packed(_docstrings_of(tree, module))


def _docstrings_of(node: ast.AST, name: str) -> Iterator[str]:
    if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
        yield f"{name}\n\n{text}"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            inner = f"{name}.{child.name}" if isinstance(child, _Definition) else name
            yield from _docstrings_of(child, inner)


def _bytecode() -> Iterator[str]:
    # Only these places are searched: an import hook may give another module for a name.
    places = [str(LIBRARY), *(path for path in sys.path if path.endswith(".zip"))]
    for name in _mixed(sys.stdlib_module_names):
        spec = PathFinder.find_spec(name, places)
        if spec is None or not isinstance(spec.loader, InspectLoader | zipimporter):
            continue
        source = spec.loader.get_source(name)
        # Compiled again if there is source: the cached code depends on -O and -OO.
        code = compile(source, name, "exec", optimize=0) if source else spec.loader.get_code(name)
        if isinstance(code, CodeType):
            yield from _packed(_disassembled(code, name))


def _disassembled(code: CodeType, name: str) -> Iterator[str]:
    lines = [f"{name}:"]
    for instruction in dis.get_instructions(code):
        argument = instruction.argrepr
        if isinstance(instruction.argval, CodeType):
            argument = instruction.argval.co_name  # its repr contains an address
        elif isinstance(instruction.argval, frozenset):
            argument = ", ".join(sorted(map(repr, instruction.argval)))  # the order of a set varies
        lines.append(f"    {instruction.opname} {argument[:80]}".rstrip())
    yield "\n".join(lines)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _disassembled(constant, f"{name}.{constant.co_name}")


def _topics() -> Iterator[str]:
    with suppress(ModuleNotFoundError):  # in a minimal installation
        from pydoc_data.topics import topics  # imported here because it is half a megabyte

        yield from (text for _, text in sorted(topics.items()))


def _unicode() -> list[str]:
    lines: list[str] = []
    for char in map(chr, range(0x20, 0x20000)):
        name = unicodedata.name(char, "")
        if name and not name.startswith(("CJK", "HANGUL", "TANGUT", "EGYPTIAN")):
            facts = {
                "category": unicodedata.category(char),
                "upper case": char.upper() if char.upper() != char else "",
                "lower case": char.lower() if char.lower() != char else "",
                "made of": unicodedata.decomposition(char),
            }
            known = ", ".join(f"{key} {fact}" for key, fact in facts.items() if fact)
            lines.append(f"{char} U+{ord(char):04X} is {name.lower()}: {known}.")
    return _mixed(_packed(lines, "\n"))


def _numbers() -> list[str]:
    texts = map(_read, sorted(LIBRARY.glob("test/**/*.decTest")))
    return _mixed(part for text in texts for part in _packed(text.splitlines(), "\n"))


def _tables() -> Iterator[str]:
    spelled = {text: [unicodedata.name(c, "CONTROL") for c in text] for text in html5.values()}
    entities = (f"&{k}\t{v}\t{', '.join(spelled[v])}" for k, v in sorted(html5.items()))
    yield from _packed(entities, "\n")
    for names in (locale.locale_alias, aliases.aliases):
        yield from _packed((f"{k}\t{v}" for k, v in sorted(names.items())), "\n")
    yield from _packed((f"{s.value}\t{s.phrase}\t{s.description}" for s in HTTPStatus), "\n")


def _mail() -> Iterator[str]:
    folder = LIBRARY / "test" / "test_email"
    yield from map(_read, sorted((folder / "data").glob("*.txt")))
    for path in sorted(folder.glob("*.py")):
        nodes = ast.walk(ast.parse(_read(path)))
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        yield from _packed(c for c in constants if isinstance(c, str) and HEADER_LINE.search(c))


def _modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Name, source and syntax tree of the modules of the standard library."""
    # From the list of names, so that site-packages and local files are never read.
    paths = [LIBRARY / f"{name}.py" for name in sys.stdlib_module_names]
    paths += [path for name in sys.stdlib_module_names for path in (LIBRARY / name).rglob("*.py")]
    for path in _mixed_files(path for path in paths if path.is_file()):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        if NOT_CODE.intersection(parts):
            continue
        source = _read(path)
        try:
            tree = ast.parse(source)
        except SyntaxError:  # some packages contain broken files, to test with
            continue
        yield ".".join(parts).removesuffix(".__init__"), source, tree


def _mixed(texts: Iterable[str]) -> list[str]:
    """The texts in a pseudo-random order that is always the same."""
    return sorted(texts, key=lambda text: key64(0, "demo", text))


def _mixed_files(paths: Iterable[Path]) -> list[Path]:
    """Files in a pseudo-random order that depends only on their paths in the standard library."""
    return [LIBRARY / name for name in _mixed(p.relative_to(LIBRARY).as_posix() for p in paths)]


def _read(path: Path) -> str:
    """The text of a file, empty if it is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def _packed(texts: Iterable[str], between: str = "\n\n", size: float = PACK_CHARS) -> Iterator[str]:
    """Join short texts to longer ones of about `size` characters."""
    packed, length = [], 0
    for text in texts:
        packed.append(text)
        length += len(text)
        if length >= size:
            yield between.join(packed)
            packed, length = [], 0
    yield between.join(packed)


def _bounded(texts: Iterable[str], max_chars: int) -> list[str]:
    """Split long texts into equal parts of whole lines, drop short ones, stop at `max_chars`."""
    kept: list[str] = []
    length = 0
    for text in texts:
        num_parts = max(math.ceil(len(text) / SPLIT_CHARS), 1)
        for part in _packed(text.splitlines(keepends=True), "", len(text) / num_parts):
            if length >= max_chars:
                return kept
            try:
                part.encode()
            except UnicodeEncodeError:  # a lone surrogate
                continue
            if len(part) >= MIN_CHARS:
                kept.append(part)
                length += len(part)
    return kept


# Upper bounds in characters, unequal like the sources of a real corpus.
SOURCES: dict[str, tuple[int, Callable[[], Iterable[str]]]] = {
    "code": (3_500_000, lambda: (without_docstrings(code, tree) for _, code, tree in _modules())),
    "tests": (1_300_000, lambda: map(_read, _mixed_files(LIBRARY.glob("test/**/test_*.py")))),
    "docstrings": (1_000_000, _docstrings),
    "bytecode": (700_000, _bytecode),
    "topics": (500_000, _topics),
    "unicode": (250_000, _unicode),
    "numbers": (200_000, _numbers),
    "tables": (150_000, _tables),
    "mail": (120_000, _mail),
}

# Junk: the demo corpus with unmarked junk inside its sources, in four kinds. Validation and trusted
# text are set apart first and stay clean.

JUNK_SHARE = 0.35  # of the training documents
_PASSAGE = "Win a free cruise today: reply with your name and number, and tell ten friends. "
_LETTERS = np.array([*"abcdefghijklmnopqrstuvwxyz    "])


def _replaced(text: str, rng: np.random.Generator) -> str:
    character_N = np.array([*text])
    is_new_N = rng.random(len(text)) < 0.3
    return "".join(np.where(is_new_N, rng.choice(_LETTERS, len(text)), character_N))


JUNK: dict[str, Callable[[str, np.random.Generator], str]] = {
    "shuffled words": lambda text, rng: " ".join(rng.permutation(text.split())),
    "replaced characters": _replaced,
    "base64": lambda text, rng: b64encode(text.encode()).decode()[: len(text)],
    "repeated passage": lambda text, rng: (_PASSAGE * len(text))[: len(text)],
}
_demo = cache(lambda: list(demo_documents()))  # a preparation reads it several times


def junk_documents(name: str) -> Iterator[tuple[str, str, str | None]]:
    """Source, text and kind of junk, None for clean text.

    `junk` is the training text, `junk@clean` what is clean of it, `junk@trusted` a tenth of the
    demo corpus and `junk@validation` 5 %.
    """
    for source, text in _demo():
        rng = stream(0, "junk", text)
        draw = rng.random()
        part = "junk@validation" if draw < 0.05 else "junk@trusted" if draw < 0.15 else "junk"
        kind = str(rng.choice(list(JUNK))) if part == "junk" and rng.random() < JUNK_SHARE else None
        if name == part or (name == "junk@clean" and part == "junk" and kind is None):
            yield source, text if kind is None else JUNK[kind](text, rng), kind


# Planted corpora: synthetic text whose sources and lowest possible loss are known exactly.
#
# Every source is a stationary Markov chain over a vocabulary that all sources share:
#
# - `unigram`: words are drawn independently; the sources differ in word frequencies.
# - `bigram`: every word is equally frequent in every source; the sources differ only in which word
#   follows which, so counts of single words cannot separate them.
#
# The optional source `noise` draws words independently and uniformly: there is nothing to learn.

NUM_WORDS = 64
NOISE = "noise"
# Frequency of the r-th most frequent word of a source is proportional to r ** -exponent, so the
# sources are not equally predictable.
ZIPF_EXPONENTS = {"alpha": 0.8, "beta": 1.0, "gamma": 1.2, "delta": 1.4}
NUM_SUCCESSORS = 6  # words that usually follow a word, equally often; each source has its own
# Probability that the next word is one of them and not a uniformly drawn one.
FOLLOW_PROBABILITIES = {"alpha": 0.995, "beta": 0.99, "gamma": 0.98, "delta": 0.97}


def planted_documents(
    kind: str, *, noise: bool = False, seed: int = 0, num_documents: int = 300, num_words: int = 300
) -> Iterator[tuple[str, str]]:
    """Source and text of a planted corpus: `num_documents` of `num_words` words in each source."""
    words = vocabulary(seed)
    for source in [*ZIPF_EXPONENTS, NOISE] if noise else ZIPF_EXPONENTS:
        first_V = word_probabilities(kind, source, seed)
        next_VV = transitions(kind, source, seed)
        rng = stream(seed, "planted", kind, source)
        word_DT = np.empty((num_documents, num_words), dtype=np.int64)
        # Inverse transform sampling, without the last threshold: rounding may put it below 1.
        threshold_VV = next_VV.cumsum(axis=1)[:, :-1]
        uniform_D = rng.random(num_documents)
        word_DT[:, 0] = np.searchsorted(first_V.cumsum()[:-1], uniform_D, side="right")
        for position in range(1, num_words):
            threshold_DV = threshold_VV[word_DT[:, position - 1]]
            word_DT[:, position] = (threshold_DV <= rng.random((num_documents, 1))).sum(axis=1)
        for word_T in word_DT:
            yield source, " ".join(words[word] for word in word_T)


def vocabulary(seed: int = 0) -> list[str]:
    """The synthetic words; a word's place here is its index in every array of this module."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    pairs = [first + second for first in syllables for second in syllables]
    rng = stream(seed, "planted", "vocabulary")
    return [pairs[index] for index in rng.choice(len(pairs), size=NUM_WORDS, replace=False)]


def word_probabilities(kind: str, source: str, seed: int = 0) -> np.ndarray:
    """How frequent each word is in a source, (V,): the stationary distribution of its chain."""
    known = {kind: ("corpus", ["unigram", "bigram"]), source: ("source", [*ZIPF_EXPONENTS, NOISE])}
    for given, (what, allowed) in known.items():
        require_known(given, allowed, f'no planted {what} "{given}"')
    if kind == "bigram" or source == NOISE:
        return np.full(NUM_WORDS, 1 / NUM_WORDS)
    weight_V = np.arange(1.0, NUM_WORDS + 1) ** -ZIPF_EXPONENTS[source]
    rank_V = stream(seed, "planted", "ranks", source).permutation(NUM_WORDS)
    frequency_V: np.ndarray = weight_V[rank_V] / weight_V.sum()
    return frequency_V


def transitions(kind: str, source: str, seed: int = 0) -> np.ndarray:
    """Probability of the next word (column) given this one (row), (V, V).

    In `bigram` this is a mixture of the uniform matrix and six random permutations. All are doubly
    stochastic, hence so is the mixture, hence the uniform distribution is stationary. Every source
    has its own six.
    """
    frequency_V = word_probabilities(kind, source, seed)
    if kind == "unigram" or source == NOISE:
        return np.tile(frequency_V, (NUM_WORDS, 1))
    rng = stream(seed, "planted", "permutations", source)
    eye_VV = np.eye(NUM_WORDS)
    follow = FOLLOW_PROBABILITIES[source]
    permuted = [eye_VV[rng.permutation(NUM_WORDS)] for _ in range(NUM_SUCCESSORS)]
    next_VV: np.ndarray = (1 - follow) / NUM_WORDS + follow * np.mean(permuted, axis=0)
    return next_VV
