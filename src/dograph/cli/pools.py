"""What `dograph plan` and `dograph compare` share: how settings are read and where runs go."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.plan.pool import Pool

Workers = Annotated[
    int | None,
    typer.Option(help="runs at once (default: one a GPU, else one a core)", show_default=False),
]
On = Annotated[str, typer.Option(metavar="local|ray", help="this machine's processes, or Ray")]
RayAddress = Annotated[
    str | None, typer.Option(help="a running Ray cluster; without it one is started here")
]


def open_pool(device: str, on: str, workers: int | None, address: str | None) -> "Pool":
    """Where many runs are made, as --on, --workers and --ray-address say."""
    if on not in ("local", "ray"):
        raise ConfigError(f'--on={on}: allowed are "local" and "ray"')
    if on == "ray":
        from dograph.plan.ray_pool import RayPool

        return RayPool(address, workers=workers)
    if address is not None:
        raise ConfigError(f"--ray-address={address} needs --on ray")
    from dograph.plan.local import LocalPool, default_workers

    return LocalPool(default_workers(device) if workers is None else workers)


def split_settings(settings: list[str]) -> tuple[str | None, list[str]]:
    """[CONFIG] [NAME=VALUE]... as the name and the overrides."""
    name = settings[0] if settings and "=" not in settings[0] else None
    return name, settings[1:] if name else settings


def command() -> str:
    """What was typed."""
    return shlex.join(["dograph", *sys.argv[1:]])
