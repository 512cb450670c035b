"""Published mixtures of SlimPajama, as their authors printed them."""

from dograph.mixtures.file import Provenance
from dograph.mixtures.preset import Preset

_DOGE_CODE = "github.com/Olivia-fsm/DoGE, config/gpt_base/reweight_{}.json (88400e9)"
_DOGE_ORDER = (
    "printed as a list; its order is that of the code's domains, with c4 before cc, although the "
    "same file's train_domains says cc before c4"
)


def _doge(method: str, file: str, steps: int, note: str) -> Provenance:
    return Provenance(
        method=method,
        made_by="Fan, Pagliardini, Jaggi: DoGE, ICML 2024",
        tokenizer_name="gpt2",
        vocab_size=50257,
        seq_len=512,
        proxy={"model": "GPT-2, 6 layers, width 768", "parameters": 81_500_000, "steps": steps},
        published=_DOGE_CODE.format(file),
        licence="MIT",
        note=f"{note}; {_DOGE_ORDER}",
    )


SLIMPAJAMA = [
    Preset(
        "doremi-slimpajama-10k",
        "slimpajama",
        {
            "ArXiv": 0.08205,
            "Book": 0.02007,
            "C4": 0.01395,
            "CommonCrawl": 0.2961,
            "Github": 0.294,
            "StackExchange": 0.09507,
            "Wikipedia": 0.1987,
        },
        _doge("doremi", "doremi10k", 10_000, "not converged: compare doremi-slimpajama-50k"),
    ),
    Preset(
        "doremi-slimpajama-50k",
        "slimpajama",
        {
            "ArXiv": 0.04235,
            "Book": 0.08201,
            "C4": 0.381,
            "CommonCrawl": 0.1141,
            "Github": 0.0654,
            "StackExchange": 0.0847,
            "Wikipedia": 0.2305,
        },
        _doge("doremi", "doremi50k", 50_000, "compare doremi-slimpajama-10k"),
    ),
    Preset(
        "doge-slimpajama",
        "slimpajama",
        {
            "ArXiv": 0.088,
            "Book": 0.045,
            "C4": 0.269,
            "CommonCrawl": 0.214,
            "Github": 0.070,
            "StackExchange": 0.166,
            "Wikipedia": 0.148,
        },
        _doge("doge", "doge", 10_000, "for universal generalisation"),
    ),
    Preset(
        "slimpajama-natural",
        "slimpajama",
        {
            "CommonCrawl": 54.1,
            "C4": 28.7,
            "Github": 4.2,
            "Book": 3.7,
            "ArXiv": 3.4,
            "Wikipedia": 3.1,
            "StackExchange": 2.8,
        },
        Provenance(
            method="natural",
            made_by="DKYoon/SlimPajama-6B on the Hugging Face hub",
            published="the data card of DKYoon/SlimPajama-6B",
            note="shares of bytes, not of tokens; mixer.name=natural uses a corpus' own tokens",
        ),
    ),
]
