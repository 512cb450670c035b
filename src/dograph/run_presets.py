"""Runs by name (run_presets.yaml): settings over the defaults of `dograph.config`."""

from typing import Any

from dograph.files import load_yaml, package_text

RUN_PRESETS: dict[str, dict[str, Any]] = load_yaml(package_text("run_presets.yaml"))


def merge(base: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Nested values, later ones winning key by key."""
    merged = dict(base)
    for other in others:
        for key, value in other.items():
            old = merged.get(key)
            both = isinstance(old, dict) and isinstance(value, dict)
            merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
