"""Tables with a known answer, in memory and in the layouts that people keep them in."""

import numpy as np

from dograph.mixtures.tables import MixtureTable

PILE = [
    *("arxiv", "freelaw", "nih_exporter", "pubmed_central", "wikipedia_en", "dm_mathematics"),
    *("github", "philpapers", "stackexchange", "enron_emails", "gutenberg_pg_19", "pile_cc"),
    *("ubuntu_irc", "europarl", "hackernews", "pubmed_abstracts", "uspto_backgrounds"),
]
WITHOUT_LOSS = {"nih_exporter", "philpapers", "enron_emails", "europarl"}
PILE_TARGETS = [name for name in PILE if name not in WITHOUT_LOSS]


def exponential_table(runs, sources, targets, *, seed=0, noise=0.0):
    """Losses 1.5 + exp(0.5 + t . r): every target is helped most by the source of its name."""
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.full(len(sources), 0.7), size=runs)
    t_VS = -0.3 * draws.random((len(targets), len(sources)))
    for row, target in enumerate(targets):
        t_VS[row, sources.index(target)] -= 1.5
    loss_NV = 1.5 + np.exp(0.5 + weight_NS @ t_VS.T)
    loss_NV = loss_NV + noise * draws.standard_normal(loss_NV.shape)
    table = MixtureTable(
        list(sources), list(targets), [f"r{n}" for n in range(runs)], weight_NS, loss_NV
    )
    return table, t_VS


def regmix_files(folder, runs=6, *, first=1, targets=PILE_TARGETS, seed=0):
    """A pair with RegMix's own headers: weights in 0.001, no newline after the last loss."""
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.full(len(PILE), 0.3), size=runs).round(3)
    loss_NV = 3 + draws.random((runs, len(targets)))
    mixtures = [",".join(["index", *(f"train_the_pile_{name}" for name in PILE)])]
    losses = [",".join(["index", *(f"metric/the_pile_{name}_val_loss" for name in targets)])]
    for n in range(runs):
        mixtures.append(",".join([str(n + first), *map(str, weight_NS[n].tolist())]))
        losses.append(",".join([str(n + first), *map(str, loss_NV[n].tolist())]))
    (folder / "mixtures.csv").write_text("\n".join(mixtures) + "\n")
    (folder / "losses.csv").write_text("\n".join(losses))
    return weight_NS, loss_NV
