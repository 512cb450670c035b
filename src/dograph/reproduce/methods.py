"""The methods of the paper's protocol, in the language of `dograph compare --mixers`.

Every source is drawn alike (the paper's Uniform, and what its Dynamic Loss-Based and DoGraph draw);
`natural` draws by tokens, and those that plan draw what they planned. `natural` and `inverse-norm`
are not in the paper: what is gained over Uniform by drawing as the text comes, or by counting each
sample's gradient by its direction alone, needs no domains.
"""

import re

from dograph.reproduce.paper import NUM_DOMAINS, OBJECTIVES

BASELINE = "uniform"
LEAD = ("natural", "inverse-norm")  # rows that come first

_EQUAL = "objective={name: precision, q: 0},effective_floor=null,warmup=0,sampling=uniform"
_PAPER = "recipe=paper,sampling=uniform"

PROTOCOL = {
    "natural": "natural=natural",
    "inverse-norm": "inverse-norm=dograph[recipe=inverse-norm,sampling=uniform]",
    "uniform": "uniform=uniform",
    "dynamic-loss": "dynamic-loss=dynamic-loss[sampling=uniform]",
    "doremi": "doremi=doremi",
    "doge": "doge=doge",
    "regmix": "regmix=regmix",
    "mixing-law": "mixing-law=mixing-law",
    "dograph-paper": f"dograph-paper=dograph[{_PAPER}]",
    "dograph": "dograph=dograph[sampling=uniform]",
}
# All samples alike, as in `uniform`, but sketched, so that the run is probed.
_PROBED = {"equal": f"equal=dograph[{_EQUAL}]"}
_OBJECTIVES = {name: f"{name}=dograph[{_PAPER},objective={name}]" for name in OBJECTIVES}
_DOMAINS = {f"m{m}": f"m{m}=dograph[{_PAPER},num_domains={m}]" for m in NUM_DOMAINS}

SPECS = PROTOCOL | _PROBED | _OBJECTIVES | _DOMAINS

ALL = tuple(PROTOCOL)
OBJECTIVE_ROWS = (*LEAD, BASELINE, *_OBJECTIVES)
DOMAIN_ROWS = (*LEAD, BASELINE, *_DOMAINS)
SIZE_ROWS = (*LEAD, BASELINE, "regmix", "dograph-paper", "dograph")
PROBED_ROWS = ("equal", "dograph-paper")


def spelled_out(text: str) -> str:
    """The user's --methods, with every label of ours replaced by what it stands for."""
    names = "|".join(map(re.escape, SPECS))
    return re.sub(rf"(?<![^,])\s*({names})\s*(?![^,])", lambda found: SPECS[found[1]], text)


def displayed(labels: list[str]) -> list[str]:
    """The order of a table's rows."""
    first = [label for label in LEAD if label in labels]
    return [*first, *(label for label in labels if label not in first)]
