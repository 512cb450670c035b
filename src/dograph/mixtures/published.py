"""Published mixtures with the weights as printed, and how they match a corpus' source names.

The literature passes weights as bare lists, so their meaning depends on the order of a loader's
domains. DoGE's weights for SlimPajama are in the order arxiv, book, c4, cc, github, stackexchange,
wikipedia; Sow et al.'s loader for SlimPajama-6B enumerates cc before c4, so the same list silently
gives CommonCrawl the weight of C4. Here sources are matched by name, never by position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.file import MixtureFile, Provenance, read_mixture_file, squash
from dograph.types import Mixture

LEAST_FIT = 0.5  # a corpus must have sources with at least this share of a preset's weight

BY_NAME = "give weights by the corpus' own names: mixer.weights, or a mixture file"

# For each collection: prefixes that a corpus may add to names, and the names we use, with other
# spellings after a colon, in lower case, letters and digits only.
_NAMES = {
    "slimpajama": (
        ("", "redpajama", "slimpajama"),
        "ArXiv, Book: books, C4: c4en, CommonCrawl: cc, Github, StackExchange: stackexchanges, "
        "Wikipedia: wiki",
    ),
    "pile": (
        ("", "thepile", "trainthepile"),
        "ArXiv, BookCorpus2, Books3, DM Mathematics: dmmath, Enron Emails: enron, EuroParl, "
        "FreeLaw, Github, Gutenberg (PG-19): gutenberg pg19, HackerNews, NIH ExPorter: nih, "
        "OpenSubtitles, OpenWebText2, PhilPapers, Pile-CC, PubMed Abstracts, PubMed Central: pmc, "
        "StackExchange, USPTO Backgrounds: uspto, Ubuntu IRC, Wikipedia (en): wikipedia wiki, "
        "YoutubeSubtitles: youtube",
    ),
}
# By collection: a corpus' spelling of a source, squashed, and our name for it.
CANONICAL: Mapping[str, Mapping[str, str]] = {
    collection: {
        prefix + spelling: ours
        for ours, _, others in (part.partition(": ") for part in names.split(", "))
        for spelling in (squash(ours), *others.split())
        for prefix in prefixes
    }
    for collection, (prefixes, names) in _NAMES.items()
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A published mixture."""

    name: str
    collection: str  # of source names: a key of CANONICAL
    weights: Mapping[str, float]  # as printed
    provenance: Provenance

    @property
    def file(self) -> MixtureFile:
        weights = dict(Mixture.normalised(self.weights).weights)
        return MixtureFile(weights=weights, provenance=self.provenance)

    def fit(self, sources: Sequence[str]) -> tuple[Mixture, list[str]]:
        """The mixture under a corpus' own source names, and notes on unmatched sources."""
        theirs: dict[str, str] = {}  # our name -> the corpus' own
        for source in sources:
            ours = CANONICAL[self.collection].get(squash(source))
            if ours in theirs:
                both = f'both "{theirs[ours]}" and "{source}", spellings of "{ours}"'
                raise ConfigError(f"the corpus has {both}; {BY_NAME}")
            if ours is not None:
                theirs[ours] = source
        shares = Mixture.normalised(self.weights).weights
        kept = {theirs[ours]: share for ours, share in shares.items() if ours in theirs}
        absent = [ours for ours in shares if ours not in theirs]
        fitting = sum(kept.values())
        if fitting < LEAST_FIT:
            raise ConfigError(
                f"the preset {self.name} does not fit this corpus: its sources are "
                f"{', '.join(shares)}; the corpus has {', '.join(sources)}; {BY_NAME}"
            )
        notes = []
        if absent:
            lacks = f"the corpus has no {', '.join(absent)} of the preset {self.name}"
            lost = f"({1 - fitting:.1%} of its weight)"
            notes.append(f"{lacks} {lost}: the rest was scaled up to sum to 1")
        if others := [source for source in sources if source not in kept]:
            notes.append(f"the preset {self.name} does not name {', '.join(others)}: not drawn")
        return Mixture.normalised(kept), notes


def _preset(name: str, weights: str, provenance: Provenance) -> Preset:
    """A preset from a printed table: a name and its weight, then a comma."""
    pairs = (part.rpartition(" ") for part in weights.split(", "))
    collection = next(known for known in CANONICAL if known in name)
    return Preset(name, collection, {source: float(w) for source, _, w in pairs}, provenance)


def _regmix(method: str, file: str, **known: Any) -> Provenance:
    return Provenance(
        method=method,
        made_by="Liu et al.: RegMix, ICLR 2025",
        tokenizer_name="EleutherAI/gpt-neox-20b",
        published=f"github.com/sail-sg/regmix, mixture_config/{file}",
        licence="MIT",
        **known,
    )


def _doremi(tokenizer: str, file: str, **proxy: Any) -> Provenance:
    return Provenance(
        method="doremi",
        made_by="Xie et al.: DoReMi, NeurIPS 2023",
        tokenizer_name=tokenizer,
        seq_len=1024,
        proxy={**proxy, "steps": 200_000, "batch_size": 512},
        published=f"github.com/sangmichaelxie/doremi, configs/{file} (a6bacfd)",
        licence="MIT",
    )


PILE = [
    _preset(
        "regmix-pile",
        "ArXiv 0.0012046169821426883, FreeLaw 0.001454510048554701, "
        "NIH ExPorter 0.001231640306882902, PubMed Central 0.003108561825532002, "
        "Wikipedia (en) 0.01593264140324679, DM Mathematics 0.00031106907908634156, "
        "Github 0.00022861228152440253, PhilPapers 1.329107360676338e-05, "
        "StackExchange 0.00029547405933203174, Enron Emails 0.0016691646199353991, "
        "Gutenberg (PG-19) 0.001612531300038395, Pile-CC 0.8701291419934237, "
        "Ubuntu IRC 0.06417728505869834, EuroParl 2.9166170357771267e-06, "
        "HackerNews 0.011925517591888925, PubMed Abstracts 0.02424425081714838, "
        "USPTO Backgrounds 0.0024587749419225434",
        _regmix(
            "regmix",
            "config_1b/regmix.yaml (476a7b0)",
            seq_len=2048,
            proxy={"model": "2 layers, width 256", "parameters": 1_300_000}  # without embeddings
            | {"number": 512, "steps": 1000, "batch_size": 512, "tokens": 1_048_576_000},
            target_tokens=25_000_000_000,
            note="for the loss on Pile-CC",
        ),
    ),
    _preset(
        "pile-natural",
        "ArXiv 0.113285273, FreeLaw 0.079608651, NIH ExPorter 0.003913491, "
        "PubMed Central 0.185375901, Wikipedia (en) 0.051081359, DM Mathematics 0.015962925, "
        "Github 0.101750772, PhilPapers 0.003707518, StackExchange 0.066529351, "
        "Enron Emails 0.001750772, Gutenberg (PG-19) 0.027085479, Pile-CC 0.236869207, "
        "Ubuntu IRC 0.01184346, EuroParl 0.007929969, HackerNews 0.008032956, "
        "PubMed Abstracts 0.038825953, USPTO Backgrounds 0.046446962",
        _regmix(
            "natural",
            "synthesize_mixture.py (0928f16)",
            note="shares of tokens of the 17 sets that are still available",
        ),
    ),
    _preset(
        "doremi-pile",
        "ArXiv 0.053539443761110306, BookCorpus2 0.003705330193042755, "
        "Books3 0.07566335052251816, DM Mathematics 0.0018699447391554713, "
        "Enron Emails 0.00395314721390605, EuroParl 0.01197313703596592, "
        "FreeLaw 0.03801446408033371, Github 0.0324750579893589, "
        "Gutenberg (PG-19) 0.029194029048085213, HackerNews 0.008439486846327782, "
        "NIH ExPorter 0.008403019979596138, OpenSubtitles 0.00321995560079813, "
        "OpenWebText2 0.19049641489982605, PhilPapers 0.009265206754207611, "
        "Pile-CC 0.13788709044456482, PubMed Abstracts 0.0969872921705246, "
        "PubMed Central 0.06081143394112587, StackExchange 0.0746409222483635, "
        "USPTO Backgrounds 0.032686419785022736, Ubuntu IRC 0.008286269381642342, "
        "Wikipedia (en) 0.10682988911867142, YoutubeSubtitles 0.011665397323668003",
        _doremi(
            "togethercomputer/RedPajama-INCITE-Base-7B-v0.1",
            "pile_doremi_r1_120M_ref:pile_baseline_50kvocab_nopack_120M.json",
            model="12 layers, width 768",
            parameters=120_000_000,
        ),
    ),
    _preset(
        "doremi-pile-paper",
        "Pile-CC 0.6057, PubMed Central 0.0046, Books3 0.0224, OpenWebText2 0.1019, ArXiv 0.0036, "
        "Github 0.0179, FreeLaw 0.0043, StackExchange 0.0153, USPTO Backgrounds 0.0036, "
        "PubMed Abstracts 0.0113, Gutenberg (PG-19) 0.0072, OpenSubtitles 0.0047, "
        "Wikipedia (en) 0.0699, DM Mathematics 0.0018, Ubuntu IRC 0.0093, BookCorpus2 0.0061, "
        "EuroParl 0.0062, HackerNews 0.0134, YoutubeSubtitles 0.0502, PhilPapers 0.0274, "
        "NIH ExPorter 0.0063, Enron Emails 0.007",
        _doremi(
            "the authors' own, of 256,000 tokens",
            "pile_doremi_280M_256kvocab_paper.json",
            model="280M",
            parameters=280_000_000,
        ),
    ),
]


def _doge(method: str, file: str, steps: int, note: str) -> Provenance:
    return Provenance(
        method=method,
        made_by="Fan, Pagliardini, Jaggi: DoGE, ICML 2024",
        tokenizer_name="gpt2",
        vocab_size=50257,
        seq_len=512,
        proxy={"model": "GPT-2, 6 layers, width 768", "parameters": 81_500_000, "steps": steps},
        published=f"github.com/Olivia-fsm/DoGE, config/gpt_base/reweight_{file}.json (88400e9)",
        licence="MIT",
        note=f"{note}; printed as a list; its order is that of the code's domains, with c4 before "
        "cc, although the same file's train_domains says cc before c4",
    )


SLIMPAJAMA = [
    _preset(
        "doremi-slimpajama-10k",
        "ArXiv 0.08205, Book 0.02007, C4 0.01395, CommonCrawl 0.2961, Github 0.294, "
        "StackExchange 0.09507, Wikipedia 0.1987",
        _doge("doremi", "doremi10k", 10_000, "not converged: compare doremi-slimpajama-50k"),
    ),
    _preset(
        "doremi-slimpajama-50k",
        "ArXiv 0.04235, Book 0.08201, C4 0.381, CommonCrawl 0.1141, Github 0.0654, "
        "StackExchange 0.0847, Wikipedia 0.2305",
        _doge("doremi", "doremi50k", 50_000, "compare doremi-slimpajama-10k"),
    ),
    _preset(
        "doge-slimpajama",
        "ArXiv 0.088, Book 0.045, C4 0.269, CommonCrawl 0.214, Github 0.070, StackExchange 0.166, "
        "Wikipedia 0.148",
        _doge("doge", "doge", 10_000, "for universal generalisation"),
    ),
    _preset(
        "slimpajama-natural",
        "CommonCrawl 54.1, C4 28.7, Github 4.2, Book 3.7, ArXiv 3.4, Wikipedia 3.1, "
        "StackExchange 2.8",
        Provenance(
            method="natural",
            made_by="DKYoon/SlimPajama-6B on the Hugging Face hub",
            published="the data card of DKYoon/SlimPajama-6B",
            note="shares of bytes, not of tokens; mixer.name=natural uses a corpus' own tokens",
        ),
    ),
]


# By name. A preset never changes: a corrected one gets another name. Weights are written as their
# authors printed them, and divided by their sum when used.
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (*SLIMPAJAMA, *PILE)}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f'no preset "{name}"; {did_you_mean(name, PRESETS)}')
    return PRESETS[name]


def find_mixture(name: str, sources: Sequence[str] | None = None) -> tuple[MixtureFile, list[str]]:
    """A mixture file, or a published mixture by name; the latter for `sources`, with notes."""
    if Path(name).exists():
        return read_mixture_file(Path(name)), []
    if name not in PRESETS:
        raise ConfigError(
            f"{name} is no mixture file and no published mixture; {did_you_mean(name, PRESETS)}"
        )
    preset = PRESETS[name]
    if sources is None:
        return preset.file, []
    fitted, notes = preset.fit(sources)
    return MixtureFile(weights=dict(fitted.weights), provenance=preset.provenance), notes
