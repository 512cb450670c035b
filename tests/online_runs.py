"""Runs with mixers that learn one weight a source: in a trainer, or as steps of several ranks."""

from corpora import write_corpus
from dograph.mixers.registry import build_mixer
from dograph.models.build import build_model
from dograph.train.checkpoint import save_model
from dograph.types import Signals
from tiny_steps import open_steps

STEPS = 4
MIXERS = {
    "dynamic-loss": {"warmup_steps": 1},
    "group-dro": {"eta": 1.0},
    "doremi-proxy": {},
    "doge-proxy": {"mu": 1e-4, "clip": 0.5},
    "rb": {"remix_every": 4},
}


def write_reference(folder):
    """A model that has learnt nothing, but another nothing than the one that is trained."""
    model = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=77)
    save_model(model, folder, None)
    return str(folder)


def options_of(name, reference):
    return MIXERS[name] | ({"reference": reference} if name == "doremi-proxy" else {})


def take_online_steps(world, corpus, reference, *overrides):
    """What each mixer weighed in a few steps, the gradients, its state and mixture in the end."""
    found = {}
    for name in MIXERS:
        mixer = build_mixer(name, options_of(name, reference))
        # a rate that does not move the model, but DoGE's weights
        steps = open_steps(corpus, "optim.lr=1e-6", *overrides, world=world, mixer=mixer)
        taken = [steps.take() for _ in range(STEPS)]
        found[name] = {"taken": taken, "state": mixer.state_dict()}
        found[name]["remixed"] = mixer.remix(Signals(step=STEPS - 1, num_samples=1))
        steps.loader.close()
    return found


def make_inputs(folder):
    return write_corpus(folder / "corpus"), write_reference(folder / "reference")


def take_toward_steps(world, corpus, *overrides):
    """Steps with a target that is not trained on: what was taken, the mixtures, the state."""
    mixer = build_mixer("toward", {"targets": ["beta"], "remix_every": 4, "max_epochs": 50.0})
    given = ("train.batch_size=7", "optim.lr=1e-6", *overrides)
    steps, taken, mixtures = open_steps(corpus, *given, world=world, mixer=mixer), [], []
    for step in range(12):
        record = steps.step(steps.loader.load(step, ahead=False), step)
        taken.append((record.loss_B, record.weight_B, steps.gradients))
        if (mixture := mixer.remix(record.signals)) is not None:
            steps.loader.sampler.remix(step + 1, mixture, "toward")
            mixtures.append(mixture.weights)
    steps.loader.close()
    return taken, mixtures, mixer.state_dict()
