"""What cannot be attached to a Trainer, said before anything runs."""

from typing import TYPE_CHECKING, Any

from torch import nn

from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import Mixer
from dograph.mixers.dograph import DoGraph
from dograph.sketch.ranks import is_sharded

if TYPE_CHECKING:
    from transformers import Trainer

COMPUTED = frozenset({"loss", "source", "sketch"})
PROCESSES = ("NO", "MULTI_CPU", "MULTI_GPU")  # accelerate's words for one process, and for DDP
# What some models do between the output layer and the loss; a sketch of that layer would miss it.
_AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def check_trainer(trainer: "Trainer") -> None:
    """Refuse a Trainer whose loss or processes leave no room for weights."""
    from transformers import PreTrainedModel, Trainer

    args, kind = trainer.args, trainer.accelerator.distributed_type
    if type(trainer).compute_loss is not Trainer.compute_loss:
        raise ConfigError(
            f"{type(trainer).__name__} has a compute_loss of its own, which would never ask for "
            "weights; attach to a Trainer that leaves compute_loss alone"
        )
    if trainer.compute_loss_func is not None:
        raise ConfigError(
            "the Trainer has a compute_loss_func already, and only one can make the loss; give it "
            "none"
        )
    if args.label_smoothing_factor != 0:
        raise ConfigError(
            f"label_smoothing_factor={args.label_smoothing_factor}: weighted losses are plain NLL; "
            "set it to 0"
        )
    if args.fp16:
        raise ConfigError("fp16: sketches underflow without loss scaling; use bf16=True")
    if args.n_gpu > 1:
        raise ConfigError(
            f"{args.n_gpu} GPUs in one process (DataParallel): start one process a GPU with "
            "torchrun, or let CUDA_VISIBLE_DEVICES name one"
        )
    if kind.value not in PROCESSES or any(is_sharded(p) for p in trainer.model.parameters()):
        raise ConfigError(
            f"parameters sharded over processes ({kind.value}): attach knows one process and DDP; "
            "use DDP, or sketched_cross_entropy in a training loop of your own"
        )
    if args.auto_find_batch_size:
        raise ConfigError(
            "auto_find_batch_size starts training again with the mixer's state of the failed try; "
            "set it to False and per_device_train_batch_size by hand"
        )
    model = trainer.model
    if not isinstance(model, PreTrainedModel) or model.config.is_encoder_decoder:
        raise ConfigError(
            f"{type(model).__name__} is not a causal language model of transformers (if it is a "
            "compiled one, let torch_compile=True compile it); use Sketcher in your own loop"
        )


def check_mixer(mixer: Mixer, accumulation: int) -> None:
    """Refuse a mixer that needs, or decides, what a Trainer does not offer."""
    name = type(mixer).__name__
    if missing := mixer.needs - COMPUTED:
        raise ConfigError(
            f"{name} needs {sorted(missing)}, which is not computed here; a mixer in a Trainer "
            f"can have {sorted(COMPUTED)}"
        )
    plans = type(mixer).plan is not Mixer.plan and type(mixer).weigh is Mixer.weigh
    if plans or (isinstance(mixer, DoGraph) and mixer.options.realise != "loss"):
        raise ConfigError(
            f"{name} decides what to draw, but a Trainer draws from its train_dataset; use a mixer "
            "that weighs (DoGraph with realise=loss), or `dograph train`"
        )
    kept = isinstance(mixer, DoGraph) and mixer.options.keep_shares
    lagged = isinstance(mixer, DoGraph) and mixer.scope.keeps_identity and not kept
    if accumulation > 1 and mixer.needs and not lagged:
        raise ConfigError(
            f"gradient_accumulation_steps={accumulation}: {name} would have to weigh micro-batches "
            "before it has seen them all, which DoGraph can with scope=stream or epoch"
            f"{' and keep_shares=False' if kept else ''}; use that, or one micro-batch a step"
        )


def check_sources(mixer: Mixer, sources: str | None, args: Any) -> None:
    """Refuse sources that would not arrive."""
    needed = mixer.options.keep_shares if isinstance(mixer, DoGraph) else "source" in mixer.needs
    if sources is None and needed:
        raise ConfigError(
            f"{type(mixer).__name__} needs the source of every sample; name the input that holds "
            "it: sources=..."
        )
    if sources is not None and args.remove_unused_columns:
        raise ConfigError(
            f"sources={sources!r}, but the Trainer drops inputs that the model does not take; "
            "set remove_unused_columns=False"
        )


def check_mode(mode: str, known: tuple[str, ...], model: Any, exclude: tuple[str, ...]) -> None:
    """Refuse an output layer that mode head cannot sketch."""
    if mode not in known:
        raise ConfigError(
            f"mode={mode!r} is not known here; {did_you_mean(mode, known)} (full, topdown and "
            "exact fill .grad themselves, and the Trainer runs its own backward)"
        )
    if mode != "head":
        return
    if exclude:
        raise ConfigError(f"exclude={exclude}: mode head sketches the output layer and no other")
    head, config = model.get_output_embeddings(), model.config.to_dict()
    strange = [name for name in _AFTER_THE_HEAD if config.get(name) not in (None, 1, 1.0)]
    if strange or not isinstance(head, nn.Linear) or head.bias is not None:
        raise ConfigError(
            f"{type(model).__name__} does more after its output layer than a softmax "
            f"({strange or 'a bias'}), so mode head cannot sketch it; use mode twopass"
        )
