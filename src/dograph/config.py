"""The configuration of a run: typed, checked, printed, stored and read again.

A wrong value is refused with its dotted name, what is allowed and what to do. The values of a
choice (sketch.mode, mixer.recipe, ...) are explained in `dograph.choices`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from dograph.choices import GRAPH_HOLDING, Accumulation, Kind, Mode
from dograph.errors import ConfigError, did_you_mean, require_known, shortened
from dograph.files import load_yaml, package_text
from dograph.renamed import REMOVED, with_new_names, with_new_settings
from dograph.types import ENDLESS, BatchSizes, Schedule

Beta = Annotated[float, Field(ge=0, lt=1, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
Sink = Literal["tensorboard", "wandb", "trackio"]
Refresh = int | Literal["never", "step"]  # of the random matrices: never, each step, each N steps
DEFAULT_DIM = 5120  # numbers in a sketch
MAX_NAME = 255  # bytes in the name of a file
# Settings that older runs do not have.
NEWER = frozenset({"cuda_graphs", "extended", "on_spike", "reference_batch_size", "skip"})


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A setting with its default, its meaning as the docs print it, and limits such as `ge=1`."""
    return Field(default, description=meaning, **limits)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _dump(self, dump: Any) -> dict[str, Any]:
        """Without what is newer, if it is not set: the keys of stored runs stay the same."""
        fields = type(self).model_fields
        unset = {name: field.default for name, field in fields.items() if name in NEWER}
        return {k: v for k, v in dump(self).items() if k not in unset or v != unset[k]}

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        """A flag is no number, though Python takes `true` for 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        is_number = {kind, *get_args(kind)} & {int, float}
        return str(value).lower() if isinstance(value, bool) and is_number else value

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        for refusal in conflicts(self):
            raise ValueError(refusal)
        return self


class DataConfig(Section):
    corpus: str = setting("demo", "a prepared corpus, or demo, junk, unigram, bigram")
    seq_len: int = setting(128, "tokens of a sample", ge=2)
    warn_epochs: float = setting(4.0, "warn if a source would be read through more often", gt=0)
    skip: list[str] = setting([], "documents never drawn: INPUT:LINE, as `show spikes` prints")


class ModelConfig(Section):
    preset: str | None = setting("demo", "a shape by name, trained from scratch")
    path: str | None = setting(None, "any causal LM by Hugging Face name or folder")
    pretrained: bool = setting(True, "with path: keep its weights, not only its shape")
    dropout: float = setting(0.0, "GPT-2 presets only; the paper has 0.1", ge=0, lt=1)


class Options(BaseModel):
    """Options of a mixer or an objective (`owner`); a wrong one raises a ConfigError."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    prefix: ClassVar[str] = "mixer."
    owner: ClassVar[str] = ""

    def __init_subclass__(cls, owner: str | None = None, **config: Any) -> None:
        super().__init_subclass__(**config)
        if owner is not None:
            cls.owner = owner

    def __init__(self, **given: Any) -> None:
        try:
            owner = self.owner or self.prefix.rstrip(".")
            super().__init__(**with_new_names(owner, given, self.prefix))
        except ValidationError as error:
            raise ConfigError("\n".join(self._refusal(one) for one in error.errors())) from None

    @classmethod
    def _refusal(cls, problem: Any) -> str:
        if problem["type"] == "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")
        option, known = str(problem["loc"][0]), list(cls.model_fields)
        name = cls.prefix + option
        if problem["type"] == "extra_forbidden":
            if option in (removed := REMOVED.get(cls.owner, {})):
                default = "null" if removed[option] is None else str(removed[option]).lower()
                only = f"only its default is still read: {default}"
                return f"{name}={problem['input']}: this option was removed; leave it out ({only})"
            instead = did_you_mean(option, known) if known else "it takes no options"
            return f"{name} is not an option of {cls.owner or cls.__name__.lower()}; {instead}"
        return refused(name, problem, cls.model_fields[option])


def refused(name: str, problem: Any, field: FieldInfo | None) -> str:
    """A wrong value of a setting or an option, and what to give instead."""
    given, allowed = shortened(repr(problem["input"])), problem["msg"]
    if problem["type"] == "literal_error":
        values = re.findall("'([^']*)'", problem["ctx"]["expected"])
        meant = did_you_mean(str(problem["input"]), values)
        every = "" if meant.startswith("allowed") else f" allowed: {', '.join(sorted(values))}"
        return f"{name}={given}; {meant}{every}"
    kinds = {field.annotation, *get_args(field.annotation)} if field is not None else set()
    if bool in kinds:
        allowed = "give true or false"
    elif field is not None and kinds & {int, float}:
        words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
        bounds = ((m, key) for m in field.metadata for key in words if hasattr(m, key))
        limits = " and ".join(f"{words[key]} {getattr(m, key):g}" for m, key in bounds)
        number = "a whole number" if int in kinds else "a finite number"
        allowed = f"give {number} {limits}".rstrip()
    elif get_origin(field and field.annotation) is list:
        allowed = "give a list, as in [a, b]"
    elif str in kinds:
        allowed = "give text; a number or a word like true is text if it is in quotes"
    elif field is not None and isinstance(field.annotation, type(BaseModel)):
        allowed = f"give its settings by name: {', '.join(field.annotation.model_fields)}"
    return f"{name}={given}: {allowed[0].lower()}{allowed[1:]}"


class MixerConfig(BaseModel):
    """The mixer's name; every other key is an argument of that mixer."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = setting("dograph", "dograph, natural, uniform, static, ... or module:Class")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class SketchConfig(Section):
    """How every sample's gradient is sketched, for mixers that need it."""

    mode: Mode = setting("full", "how sketches and the weighted gradient are computed")
    dim: int = setting(DEFAULT_DIM, "numbers in a sketch", ge=1)
    projection: Kind = setting("hashed", "the random matrices of the sketch")
    refresh: Refresh | None = setting(
        None, "new random matrices: never, step, or every N steps; null: by mixer.scope"
    )
    top_blocks: int = setting(4, "blocks sketched in mode topdown", ge=1)
    exclude: list[str] = setting([], "parameters or layers not sketched, by name; still trained")
    accumulation: Accumulation = setting(
        "two_sweeps", "where weights come from if a batch has several micro-batches"
    )


class OptimConfig(Section):
    lr: float = setting(2e-3, "highest learning rate, reached after warm-up", gt=0)
    lr_end: float = setting(2e-4, "learning rate of the last step", ge=0)
    lr_start: float = setting(1e-7, "learning rate of the first step", ge=0)
    warmup_steps: int = setting(20, "steps to the highest rate; if not set, at most a tenth", ge=0)
    betas: tuple[Beta, Beta] = setting((0.9, 0.95), "of AdamW")
    eps: float = setting(1e-8, "of AdamW", gt=0)
    weight_decay: float = setting(0.01, "on matrices; not on biases and norms", ge=0)
    clip_norm: float = setting(1.0, "gradient norm above which it is scaled down", gt=0)


def checked_size(given: Any) -> Schedule:
    """A batch size or a schedule, in whole numbers."""
    is_list = isinstance(given, list | tuple)
    try:
        listed = given if is_list else [(0, given)]
        pairs = TypeAdapter(list[tuple[int, int]]).validate_python(listed)
        tokens, sizes = zip(*pairs, strict=True)
        if tokens[0] == 0 and sorted(set(tokens)) == list(tokens) and min(sizes) > 0:
            return pairs if is_list else pairs[0][1]
    except ValueError:
        pass
    raise ValueError(
        f"got {shortened(repr(given))}; give a whole number of at least 1, or a schedule of "
        "[tokens, size] with rising tokens from 0, as in [[0, 12], [2e6, 24]]"
    )


class TrainConfig(Section):
    steps: int = setting(200, "optimizer steps, each of reference_batch_size samples", ge=1)
    batch_size: Annotated[Schedule, BeforeValidator(checked_size)] = setting(
        16, "samples of one step, over all ranks; or by tokens: [[0, 12], [2e6, 24]]"
    )
    reference_batch_size: int | None = setting(
        None, "size that steps, warm-up, lr and betas are for; null: that of a fixed batch", ge=1
    )
    micro_batch_size: int | None = setting(None, "samples of a rank at once; null: its share", ge=1)
    dtype: Literal["float32", "bfloat16"] = setting("float32", "forward pass; weights: float32")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    shard: bool = setting(False, "torchrun: FSDP2, a part of weights, gradients, moments per rank")
    compile: bool = setting(False, "torch.compile blocks, last norm and loss")
    activation_checkpointing: bool = setting(False, "less memory, one more forward")
    deterministic: bool = setting(False, "CUDA: bitwise repeatable, slower")
    cuda_graphs: bool = setting(True, "one GPU: replay steps, so that they do not wait for Python")
    on_spike: Literal["warn", "skip"] | None = setting(None, "watch samples: name spikes, or skip")
    extended: list[tuple[int, int]] = setting([], "[[40, 60]]: steps was 60 until a resume at 40")

    @property
    def half(self) -> bool:
        """Whether the forward pass runs in half precision."""
        return self.dtype == "bfloat16"


class EvalConfig(Section):
    every: int = setting(50, "steps between validations; 0: only at the end", ge=0)
    max_samples_per_source: int = setting(32, "validation samples of a source", ge=1)


class ProbeConfig(Section):
    """Sketches of the same held-out rows as the model changes, for mixers that need sketches."""

    rows: int = setting(512, "held-out samples, equally many of each source; 0: none", ge=0)
    at: list[Fraction] = setting([0.0, 0.01, 0.03, 0.1, 0.3, 1.0], "fractions of the run's steps")


class CheckpointConfig(Section):
    every: int = setting(50, "steps between checkpoints; 0: only when it stops", ge=0)
    keep: int = setting(2, "newest checkpoints kept", ge=1)


class LogConfig(Section):
    every: int = setting(10, "steps between writes of the metrics, and between full rows", ge=1)
    sinks: list[Sink] = setting([], "where else metrics go: tensorboard, wandb, trackio")


class RunConfig(Section):
    seed: int = setting(0, "of the weights, the data order and the mixer", ge=0)
    run: str = setting("runs/demo", "directory of the run")
    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    mixer: MixerConfig = Field(default_factory=MixerConfig)
    sketch: SketchConfig = Field(default_factory=SketchConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    probe: ProbeConfig = Field(default_factory=ProbeConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        return with_new_settings(values) if isinstance(values, Mapping) else values

    @property
    def batches(self) -> BatchSizes:
        """The batch size of every step."""
        return self.batch_plans()[-1][1]

    def batch_plans(self) -> list[tuple[int, BatchSizes]]:
        """The same as it was planned until each step at which the run was extended, and now."""
        train, length = self.train, self.data.seq_len
        known, plans = [*train.extended, (ENDLESS, train.steps)], []
        for number, (until, steps) in enumerate(known):
            own = (train.reference_batch_size, [*known[:number], (ENDLESS, steps)])
            plans.append((until, BatchSizes(train.batch_size, length, *own)))
        return plans

    def batches_at(self, step: int) -> BatchSizes:
        """The same as it was planned when the run made step `step`, counted from 0."""
        return next(own for until, own in self.batch_plans() if step < until)

    @property
    def tokens(self) -> int:
        """Tokens that the run draws."""
        return self.batches.samples * self.data.seq_len

    def warmup_over(self, steps: int) -> int:
        """Warm-up steps of the same run with another number of steps, in proportion."""
        return round(self.optim.warmup_steps * steps / self.train.steps)

    def dump(self) -> str:
        """YAML that gives this configuration back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


# Settings that do not go together: what was given, why, what to do. Checked before a model or a
# corpus is loaded; what needs those is checked where they are.


def conflicts(section: BaseModel) -> Iterator[str]:
    """Contradictions within a section of the configuration, or within the whole."""
    match section:
        case ModelConfig(preset=preset, path=path, dropout=dropout):
            if (preset is None) == (path is None):
                yield (
                    "give model.preset or model.path, and not both (set the other to null); "
                    f"got preset={preset!r}, path={path!r}"
                )
            if path is not None and dropout:
                yield "model.dropout is for presets; a model by path has its own"
        case SketchConfig(accumulation="keep", mode=mode) if mode in GRAPH_HOLDING:
            yield (
                f"sketch.accumulation=keep would hold every micro-batch's graph in mode {mode}; "
                "use two_sweeps, lagged, or mode full"
            )
        case TrainConfig(batch_size=[_, _, *_] as sizes, reference_batch_size=None):
            yield (
                "a schedule of train.batch_size needs train.reference_batch_size, the size that "
                "train.steps, optim.warmup_steps, optim.lr and optim.betas are for, as in "
                f"train.reference_batch_size={sizes[-1][1]}"
            )
        case RunConfig(run=run, optim=optim, train=train):
            longest = max(len(part.encode(errors="replace")) for part in ("", *run.split("/")))
            if not run.strip() or "\0" in run or longest > MAX_NAME:
                yield (
                    f"run={shortened(repr(run))}: give a folder of the file system, with at most "
                    f"{MAX_NAME} bytes between slashes, as in run=runs/mine"
                )
            if optim.warmup_steps > train.steps:
                yield (
                    f"optim.warmup_steps={optim.warmup_steps} exceeds train.steps={train.steps}; "
                    f"lower it, as in optim.warmup_steps={train.steps // 10}, or train longer"
                )


def parse_config(
    values: dict[str, Any], where: str, typed: Mapping[str, Any] | None = None
) -> RunConfig:
    """Check nested values and build the configuration; one error lists all problems.

    `typed`: the values that come from the command line instead of `where`.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        lines: dict[str, list[str]] = {}
        for problem in error.errors():
            lines.setdefault(_origin(problem, where, typed or {}), []).append(_explain(problem))
        raise ConfigError(
            "\n".join(f"{place}:\n  " + "\n  ".join(own) for place, own in lines.items())
        ) from None


def _origin(problem: Any, where: str, typed: Mapping[str, Any]) -> str:
    """Where a wrong value comes from; values that contradict each other may have two origins."""
    paths, together = [problem["loc"]], problem["type"] == "value_error"
    if not problem["loc"]:  # about the whole configuration: the message names the settings
        named = [name for name in setting_names() if f"{name}=" in problem["msg"]]
        paths = [name.split(".") for name in named]
    if not any(_holds(typed, path) for path in paths):
        return where
    return f"on the command line, over {where}" if together else "on the command line"


def _holds(values: Any, path: Sequence[Any]) -> bool:
    """Whether nested values set this path, or something that contains it."""
    for part in path:
        if not isinstance(values, Mapping):
            return True
        if part not in values:
            return False
        values = values[part]
    return True


def _explain(problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    # a third part is an index into a list, or one of the types that a setting may have
    name = ".".join([*path[:2], *(part for part in path[2:] if part.isdecimal())])
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        known = list(RunConfig.model_fields) if len(path) == 1 else setting_names()
        called = " or ".join(f'"{own}"' for own in settings_called(path[-1]))
        instead = f"did you mean {called}?" if called else did_you_mean(name, known)
        return f"{name} is not a setting; {instead}"
    if problem["type"] == "value_error":
        message: str = problem["msg"].removeprefix("Value error, ")
        return f"{name}: {message}" if name else message
    field = RunConfig.model_fields[path[0]]
    if len(path) > 1 and isinstance(section := field.annotation, type(BaseModel)):
        field = section.model_fields[path[1]]
    return refused(name, problem, field if len(path) < 3 else None)


def setting_names() -> list[str]:
    """Every dotted name that a configuration may set."""
    names = []
    for name, value in RunConfig():
        section = type(value).model_fields if isinstance(value, BaseModel) else None
        names += [name] if section is None else [f"{name}.{own}" for own in section]
    return names


def settings_called(name: str) -> list[str]:
    """Dotted names of the settings with this name, or with this last part."""
    return [own for own in setting_names() if name in (own, own.rpartition(".")[2])]


def read_yaml(path: Path) -> dict[str, Any]:
    """A configuration file as nested values."""
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold settings (name: value), got {type(content).__name__}")
    return content


# How a name, a file and overrides become one configuration.

RUN_PRESETS: dict[str, dict[str, Any]] = load_yaml(package_text("run_presets.yaml"))


def merge(base: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Nested values, later ones winning key by key."""
    merged = dict(base)
    for other in others:
        for key, value in other.items():
            old = merged.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                value = merge(old, value)
            merged[key] = value
    return merged


def resolve_config(name: str | None, overrides: Sequence[str]) -> RunConfig:
    """A preset or a YAML file (which may name a preset as its base), then dotted overrides."""
    name = name or "demo"
    if name not in RUN_PRESETS and Path(name).is_file():
        values = read_yaml(Path(name))
        values = merge(_preset(values.pop("preset", "demo")), values)
    else:
        values = _preset(name)
    values = with_new_settings(values)
    changes = merge({}, *(parse_override(override) for override in overrides))
    old, new = values.get("mixer"), changes.get("mixer")
    before = old.get("name", "dograph") if isinstance(old, dict) else "dograph"
    named = new.get("name", before) if isinstance(new, dict) else before
    changes = with_new_settings(changes, mixer=str(named))
    merged = merge(values, changes)
    if named != before:  # naming another mixer drops the options of the one it replaces
        merged |= {"mixer": changes["mixer"]}
    # A warm-up that is not set takes the same part of a short run as of the default one. Wrong
    # values are left to parse_config.
    train, optim, default = merged.get("train"), merged.get("optim", {}), RunConfig()
    steps = train.get("steps") if isinstance(train, dict) else None
    unset = isinstance(optim, dict) and "warmup_steps" not in optim
    if unset and isinstance(steps, int) and 0 < steps < default.train.steps:
        merged = merge(merged, {"optim": {"warmup_steps": default.warmup_over(steps)}})
    return parse_config(merged, name, changes)


def _preset(name: Any) -> dict[str, Any]:
    what = f'"{name}" is neither an existing YAML file, a preset nor a setting (name=value)'
    require_known(str(name), RUN_PRESETS, what)
    return RUN_PRESETS[str(name)]


def parse_override(text: str) -> dict[str, Any]:
    """`train.steps=200` as nested values; the right side is read as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ConfigError(f'"{text}" is not an override; write name=value, as in train.steps=200')
    try:
        parsed: Any = load_yaml(value)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f'"{shortened(text)}": the value is not YAML: {error}') from error
    for part in reversed(name.split(".")):
        parsed = {part: parsed}
    return with_new_settings(parsed, mixer="")  # its options once it is known which mixer it is
