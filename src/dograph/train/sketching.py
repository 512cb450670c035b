"""The sketcher of a run, and how long its projections hold."""

from torch import nn

from dograph.config import RunConfig
from dograph.domains.stream import FIT_BATCHES
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.mixers.doge_proxy import DoGEProxy
from dograph.mixers.dograph import DoGraph
from dograph.models.loss import PerSampleLoss
from dograph.modes import Refresh
from dograph.sketch.recording import unwrapped
from dograph.sketch.sketcher import Sketcher


def open_sketcher(config: RunConfig, model: nn.Module, mixer: Mixer) -> Sketcher:
    """The sketcher that the configuration describes, for a mixer that needs sketches."""
    how, loss, refresh = config.sketch, unwrapped(model), refresh_for(config, mixer)
    assert isinstance(loss, PerSampleLoss)
    if how.mode == "head":
        loss.require_plain_head()
    return Sketcher(
        model,
        mode=how.mode,
        dim=how.dim,
        projection=how.projection,
        seed=config.seed,
        refresh=refresh,
        exclude=tuple(how.exclude),
        top_blocks=how.top_blocks,
        head=loss.head,
    )


def refresh_for(config: RunConfig, mixer: Mixer) -> Refresh:
    """When projections are redrawn: as asked for, or as the mixer's domains need it."""
    asked = config.sketch.refresh
    if isinstance(mixer, DoGEProxy) and asked not in (None, "never"):
        raise ConfigError(
            f"sketch.refresh={asked} with mixer.name={config.mixer.name}: a source that is absent "
            "from a batch keeps its last sketch, so all must be under one projection; set "
            "sketch.refresh=never"
        )
    if not isinstance(mixer, DoGraph):
        return "never" if asked is None else asked
    if mixer.options.scope == "batch":
        return "step" if asked is None else asked
    _require_lasting(mixer, asked)
    return "never" if asked is None else asked


def _require_lasting(mixer: DoGraph, asked: Refresh | None) -> None:
    """Domains that last need sketches under one projection."""
    options = mixer.options
    remedy = "set sketch.refresh to never or to some hundreds of steps, or mixer.scope to batch"
    if asked == "step":
        raise ConfigError(
            f"sketch.refresh=step with mixer.scope={options.scope}: domains that last need "
            f"sketches under one projection; {remedy}"
        )
    first = options.every if options.scope == "epoch" else FIT_BATCHES
    if isinstance(asked, int) and 0 < asked <= first:
        raise ConfigError(
            f"sketch.refresh={asked} with mixer.scope={options.scope}: domains are found from "
            f"{first} steps, and would be forgotten before any could use them; {remedy}"
        )
