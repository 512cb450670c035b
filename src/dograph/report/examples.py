"""Texts of domains: of the probe rows nearest a centre, or of the samples of a step.

Domains that last are shown by the probe rows nearest their centre. Those of one batch have no place
for other rows: they are shown by the samples of that batch which were in them.
"""

import json
from collections.abc import Sequence
from typing import Any

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.data.tokens import StratumTokens
from dograph.data.weight_log import WeightLog
from dograph.errors import DographError
from dograph.report.content import Example, Text
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory

EXAMPLES = 5  # texts shown of a domain
TEXT = 480  # characters of each


class Texts:
    """Texts of a page, each once, whichever runs show it."""

    def __init__(self) -> None:
        self.found: list[Text] = []
        self._index: dict[tuple[Any, ...], int] = {}

    def add(self, corpus: Corpus, stratum: StratumTokens, row: int, seq_len: int) -> int | None:
        """The number of a block's text; None where the corpus holds tokens alone."""
        if corpus.manifest.tokenizer.file is None:
            return None
        key = (corpus.directory, stratum.entry.file, row, seq_len)
        if key not in self._index:
            text = corpus.text(stratum, row * seq_len, (row + 1) * seq_len)
            self._index[key] = len(self.found)
            self.found.append(Text(text[:TEXT], len(text) > TEXT))
        return self._index[key]


def probe_examples(
    told: dict[str, Any], corpus: Corpus | None, seq_len: int, texts: Texts
) -> dict[str, list[Example]]:
    """By domain, the rows that a probe names as nearest its centre."""
    strata = {s.entry.stratum: s for s in corpus.validation} if corpus is not None else {}
    places = {(row["source"], row["row"], row["document"]): row for row in told["rows"]}
    found = {}
    for domain in told["domains"] or []:
        own = []
        for near in domain["nearest"][:EXAMPLES]:
            stratum = strata.get(places[near["source"], near["row"], near["document"]]["stratum"])
            text = None
            if corpus is not None and stratum is not None:
                text = texts.add(corpus, stratum, near["row"], seq_len)
            own.append(Example(near["source"], near["document"], text))
        found[str(domain["domain"])] = own
    return found


def step_examples(
    run: RunDirectory, config: RunConfig, corpus: Corpus, steps: Sequence[int], texts: Texts
) -> dict[int, dict[str, list[Example]]]:
    """By step and domain, the first samples of the step's batch that were in the domain."""
    labels = _labels(run, set(steps))
    try:
        sampler = open_sampler(config, corpus)
        sampler.log = WeightLog.load(run.weights_file, sampler.names)
    except (DographError, OSError):
        return {}
    found: dict[int, dict[str, list[Example]]] = {}
    for step, domain_B in labels.items():
        ids = sampler.draw(step - 1)
        own: dict[str, list[Example]] = {}
        for i, domain in enumerate(domain_B):
            shown = own.setdefault(str(domain), [])
            if len(shown) < EXAMPLES:
                stratum = corpus.train[int(ids.stratum_B[i])]
                text = texts.add(corpus, stratum, int(ids.block_B[i]), config.data.seq_len)
                shown.append(Example(stratum.entry.source, int(ids.document_B[i]), text))
        found[step] = own
    return found


def _labels(run: RunDirectory, steps: set[int]) -> dict[int, list[int]]:
    """Domains of the samples of some steps; only their lines are parsed."""
    found: dict[int, list[int]] = {}
    if not run.samples_file.is_file():
        return found
    with open(run.samples_file, encoding="utf-8") as file:
        for line in file:
            number = line[len('{"step": ') : line.find(",")]
            if number.isdecimal() and int(number) in steps and line.endswith("\n"):
                domain_B = json.loads(line)["domain"]
                if domain_B is not None:
                    found[int(number)] = domain_B
    return found
