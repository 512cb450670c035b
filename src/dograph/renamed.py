"""Settings and metrics that had other names: one place, read wherever old files and calls come in.

Old run directories, recipes and keyword arguments keep working; one line says the new name, once
per process. A setting that is given under both names is refused.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dograph.errors import ConfigError

Rows = dict[str, tuple[str, dict[Any, Any]]]  # old name: (new name, {old value: new value})

# By section of the configuration ("eval."), by mixer, and for objectives.
RENAMED: dict[str, Rows] = {
    "eval.": {"max_blocks": ("max_samples_per_source", {})},
    "dograph": {
        "within": ("normalize_gradients", {"mean": False, "unit": True}),
        "norm_from": ("gradient_norm_from", {}),
        "realise": ("apply_weights_to", {}),
        "effective_floor": ("min_effective_fraction", {}),
        "keep_shares": ("keep_source_shares", {}),
        "scope": ("scope", {"epoch": "period"}),
        "every": ("period_steps", {}),
        "normalise": ("spherical_kmeans", {}),
        "restarts": ("kmeans_restarts", {}),
        "remix_floor": ("remix_min_fraction", {}),
        "warmup": ("warmup_ratio", {}),
    },
    "objective": {
        "gamma": ("graph_penalty", {}),
        "variance": ("variance", {"printed": "paper"}),
        "sigma": ("sigma", {"printed": "paper"}),
    },
    "dynamic-loss": {"r": ("temperature", {})},
    "doremi": {
        "normaliser": ("loss_normalization", {"per_domain": "per_source"}),
        "excess": ("clip_excess_per", {"domain": "source"}),
    },
    "doge": {"clip": ("clip_norm", {})},
}
RENAMED |= {f"{name}-proxy": RENAMED[name] for name in ("doremi", "doge")}

# Options that were removed, with the default that old runs may still name.
REMOVED: dict[str, dict[str, Any]] = {
    "dograph": {"weight_floor": 0, "min_size": 1, "max_relative_weight": None, "cap": None},
    "dynamic-loss": {"clip_quantile": None},
    "group-dro": {"mode": "online", "absent": "skip", "normalize_losses": False, "normalise": False}
    | {"alpha": 0.2, "gamma": 0.1},
    "mixing-law": {"law": "exponential"},
    "mixing-law with a table": {"law": "exponential"},
}
# Metrics that had other names, as in the lines of metrics.jsonl.
RENAMED_METRICS = {b'"weights/max_times_equal"': b'"weights/max_relative_weight"'}
_announced: set[str] = set()


def with_new_metrics(line: bytes) -> bytes:
    """A line of metrics.jsonl under the present names of metrics."""
    for old, new in RENAMED_METRICS.items():
        line = line.replace(old, new)
    return line


def with_new_names(owner: str, given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Settings of one section, mixer or objective (`owner`) under their present names."""
    rows, removed, result = RENAMED.get(owner, {}), REMOVED.get(owner, {}), dict[str, Any]()
    for old, value in given.items():
        if old in removed and value == removed[old]:  # another value stays, for files to be read
            continue
        new, values = rows.get(old, (old, {}))
        if new != old and new in given:
            raise ConfigError(
                f"{prefix}{old} is the old name of {prefix}{new}, and both are given; leave out "
                f"{prefix}{old}"
            )
        known = isinstance(value, str) and value in values
        result[new] = values[value] if known else value
        if new != old:
            pairs = ", ".join(f"{a} is {str(b).lower()}" for a, b in values.items())
            _announce(f"{prefix}{old} is now {prefix}{new}" + (f" ({pairs})" if pairs else ""))
        elif known:
            _announce(f"{prefix}{old}={value} is now {prefix}{new}={values[value]}")
    return result


def _announce(line: str) -> None:
    """Print to stderr, the first time, from the first rank."""
    if line not in _announced and os.environ.get("RANK", "0") == "0":
        print(f"note: {line}", file=sys.stderr)
    _announced.add(line)


def _with_old_names(owner: str, given: Mapping[str, Any], _prefix: str) -> dict[str, Any]:
    back = {new: (old, values) for old, (new, values) in RENAMED.get(owner, {}).items()}
    result = dict[str, Any]()
    for new, value in given.items():
        old, values = back.get(new, (new, {}))
        result[old] = next((o for o, n in values.items() if n == value), value)
    return result


def with_new_settings(values: Mapping[str, Any], mixer: str = "dograph") -> dict[str, Any]:
    """Nested settings of a run under their present names; `mixer`: if they name none."""
    return _each_section(values, with_new_names, mixer)


def with_old_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse: a digest of settings under old names does not change with a renaming."""
    return _each_section(values, _with_old_names, "dograph")


def _each_section(
    values: Mapping[str, Any],
    rename: Callable[[str, Mapping[str, Any], str], dict[str, Any]],
    mixer: str,
) -> dict[str, Any]:
    result = dict(values)
    for section, own in values.items():
        if isinstance(own, Mapping):
            owner = str(own.get("name", mixer)) if section == "mixer" else f"{section}."
            result[section] = new = rename(owner, own, f"{section}.")
            if owner == "dograph" and isinstance(objective := new.get("objective"), Mapping):
                new["objective"] = rename("objective", objective, "mixer.objective.")
    return result
