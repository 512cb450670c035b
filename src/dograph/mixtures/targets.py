"""What a plan is to lower: one target by its name, the mean of all, or several with shares."""

import math
from collections.abc import Mapping, Sequence

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.tables import MixtureTable

Target = str | Sequence[str] | Mapping[str, float]

MEAN = "mean"


def known_name(name: str, known: Sequence[str], aliases: Mapping[str, str], what: str) -> str:
    """The table's own name for a name as users write it: that one, or the column's."""
    if name in known:
        return name
    if aliases.get(name) in known:
        return aliases[name]
    raise ConfigError(f'the table has no {what} "{name}"; {did_you_mean(name, known)}')


def target_shares(table: MixtureTable, target: Target) -> dict[str, float]:
    """Share of each target in what is to be lowered; they sum to 1.

    Targets are named, never counted: columns of such files have changed places before.
    """
    if isinstance(target, str):
        if target == MEAN:
            if MEAN in table.targets:
                raise ConfigError(
                    'a target of the table is called "mean", which also asks for the mean over '
                    "all targets; rename that column, or name the targets with their shares"
                )
            shares = dict.fromkeys(table.targets, 1.0)
        else:
            try:
                shares = {known_name(target, table.targets, table.aliases, "target"): 1.0}
            except ConfigError as error:
                raise ConfigError(f'{error} (or "{MEAN}", over all targets)') from None
    else:
        given = target if isinstance(target, Mapping) else dict.fromkeys(target, 1.0)
        shares = {}
        for name, share in given.items():
            own = known_name(name, table.targets, table.aliases, "target")
            if own in shares:
                raise ConfigError(f'target "{own}" is named twice')
            if not (math.isfinite(share) and share >= 0):
                raise ConfigError(f'the share of target "{name}" must be >= 0, got {share}')
            shares[own] = float(share)
    total = math.fsum(shares.values())
    if not total > 0:
        raise ConfigError(f"targets need a share above 0, got {dict(shares)}")
    return {name: share / total for name, share in shares.items() if share > 0}
