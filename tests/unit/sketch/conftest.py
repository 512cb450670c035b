"""Tiny models with nothing at its default, and other ways to the gradients that taps give.

Shapes: B samples, T tokens, V vocabulary, D width, K sketch, F numbers to hash; R x C a parameter,
q x p its sketch before flattening.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dograph.rng import key64
from dograph.sketch.projection import VECTORS
from dograph.sketch.sketcher import Sketcher
from drawn_alone import fold_of, matrix_of

VOCABULARY, WIDTH = 64, 32
DIM = 80  # 10 x 8 columns; 16 x 16, folded, for tables and heads of the vocabulary


def generator(*name):
    return torch.Generator().manual_seed(key64(0, *name) >> 1)


def randomised(model, std=0.15):
    """Every parameter drawn anew, so that no bias is 0 and no norm's scale is 1."""
    draw = generator(type(model).__name__, "parameters")
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.normal_(float(is_scale), std, generator=draw)
    return model


def gpt2(layers=2, dtype=torch.float64, *, attention="sdpa", dropout=0.0, std=0.15):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=WIDTH,
        n_layer=layers,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = attention
    return randomised(GPT2LMHeadModel(config), std).to(dtype)


def llama(layers=2, dtype=torch.float64, *, attention="sdpa", norms="torch"):
    """`norms` of Hugging Face round to float32 whatever the model's precision; torch's do not."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        use_cache=False,
    )
    config._attn_implementation = attention
    model = LlamaForCausalLM(config)
    if norms == "torch":
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child).__name__ == "LlamaRMSNorm":
                    setattr(module, name, nn.RMSNorm(WIDTH, eps=child.variance_epsilon))
    return randomised(model).to(dtype)


class PlainBlock(nn.Module):
    """Both of torch's norms, Linear with and without a bias."""

    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.between = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, hidden_BTD):
        size, length, _ = hidden_BTD.shape
        qkv = self.qkv(self.before(hidden_BTD)).view(size, length, 3, 2, WIDTH // 2)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BTD = hidden_BTD + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden_BTD + self.down(F.gelu(self.up(self.between(hidden_BTD))))


class Plain(nn.Module):
    """A decoder by hand: positions come as (T,), and token 3 is padding, which learns nothing."""

    def __init__(self, layers):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH, padding_idx=3)
        self.position = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(layers))
        self.last = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token_BT):
        hidden_BTD = self.token(token_BT) + self.position(torch.arange(token_BT.shape[1]))
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD)
        return self.head(self.last(hidden_BTD))


def plain(layers=1, dtype=torch.float64, **_):
    return randomised(Plain(layers)).to(dtype)


class PerSample(nn.Module):
    """A model and its losses in one, as a trainer compiles it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, token_BT):
        return nll(self.model, token_BT)


def nll(model, token_BT):
    """Mean NLL of every sample over its own predicted tokens."""
    output = model(token_BT)
    logits_BTV = output if isinstance(output, torch.Tensor) else output.logits
    loss_N = F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), token_BT[:, 1:].flatten(), reduction="none"
    )
    return loss_N.view(len(token_BT), -1).mean(dim=1)


def run(model, token_BT, weight_B, *, loss=nll, step=0, group_of=None, **options):
    """The sketch of one batch, and the gradient that its weights leave in `.grad`.

    `group_of` names the part of the sketch that a layer's matrix is in; vectors are in "rest".
    """
    model.zero_grad()
    sketcher = Sketcher(model, **{"dim": DIM, **options})
    for rule in sketcher.rules if group_of else ():
        rule.group = group_of(rule)
    with sketcher.record(token_BT, step):
        sketch = sketcher.sketch(loss(model, token_BT))
        sketch.backward(weight_B)
    return sketch, gradients(model)


def autograd(model, token_BT, weight_B, *, loss=nll):
    """The gradient of sum_i weight_i loss_i by a plain backward."""
    model.zero_grad()
    (weight_B * loss(model, token_BT)).sum().backward()
    return gradients(model)


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def per_sample_gradients(model, token_BT):
    """Every sample's gradient by parameter, from vmap(grad)."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, token_T):
        def forward(token_BT):
            return functional_call(model, parameters, (token_BT,))

        return nll(forward, token_T[None]).sum()

    with sdpa_kernel(SDPBackend.MATH):  # the others have no batching rule
        return vmap(grad(loss), in_dims=(None, 0))(parameters, token_BT)


def folded(fold, value_BF):
    """A signed hash, one number at a time."""
    sketch_BK = value_BF.new_zeros(len(value_BF), fold.dim)
    places = zip(fold.index_N.tolist(), fold.sign_N.tolist(), strict=True)
    for place, (index, sign) in enumerate(places):
        if index < value_BF.shape[1]:
            sketch_BK[:, place % fold.dim] += sign * value_BF[:, index]
    return sketch_BK


def explicit_sketch(projection, model, name, gradient, *, step=0):
    """A matrix' sketch from its gradients in full, with the very matrices, written out."""
    sides = matrix_of(
        projection,
        name,
        tuple(gradient.shape[1:]),
        wide=gradient.shape[1] == VOCABULARY,
        step=step,
        like=gradient,
    )
    sketch = torch.einsum("rq,brc,cp->bqp", sides.row_Rq, gradient, sides.col_Cp)
    flat_BF = sketch.flatten(1)
    return flat_BF if sides.fold is None else folded(sides.fold, flat_BF)


def explicit_vectors(projection, model, gradients, *, step=0):
    """The sketch of these vectors: all of the model's end to end, the others 0, hashed as one."""
    some = next(iter(gradients.values()))
    layout = []
    for path, module in model.named_modules():
        for own in ("weight", "bias"):
            parameter = dict(module.named_parameters(recurse=False)).get(own)
            if parameter is not None and parameter.dim() == 1 and parameter.requires_grad:
                zeros = some.new_zeros(len(some), parameter.numel())
                layout.append(gradients.get(f"{path}.{own}", zeros))
    vector_BF = torch.cat(layout, dim=1)
    fold = fold_of(projection, VECTORS, vector_BF.shape[1], step=step, like=vector_BF)
    return folded(fold, vector_BF)


def explicit_total(projection, model, gradients, *, step=0):
    """The whole sketch: matrices one by one, then norms and biases together."""
    matrices = [n for n, g in gradients.items() if g.dim() > 2]
    vectors = {n: g for n, g in gradients.items() if g.dim() == 2}
    return sum(
        (explicit_sketch(projection, model, n, gradients[n], step=step) for n in matrices),
        start=explicit_vectors(projection, model, vectors, step=step),
    )


def error(got, expected):
    """Largest deviation over the largest entry."""
    assert got.shape == expected.shape
    return ((got - expected).abs().max() / expected.abs().max()).item()


def gradient_error(got, expected):
    """That of the worst parameter; both must hold the same parameters."""
    assert got.keys() == expected.keys()
    return max(error(got[name], expected[name]) for name in expected)


@pytest.fixture(scope="session")
def tiny():
    """Models by name, and what is done with them."""
    return SimpleNamespace(
        build={"gpt2": gpt2, "llama": llama, "plain": plain},
        gpt2=gpt2,
        llama=llama,
        plain=plain,
        PerSample=PerSample,
        nll=nll,
        run=run,
        autograd=autograd,
        gradients=gradients,
        per_sample_gradients=per_sample_gradients,
        explicit_sketch=explicit_sketch,
        explicit_vectors=explicit_vectors,
        explicit_total=explicit_total,
        folded=folded,
        error=error,
        gradient_error=gradient_error,
        generator=generator,
        randomised=randomised,
    )


@pytest.fixture
def token_BT():
    token_BT = torch.randint(VOCABULARY, (5, 12), generator=generator("tokens"))
    token_BT[1, 4] = token_BT[3, 0] = 3  # the padding of the plain model
    return token_BT


@pytest.fixture
def weight_B():
    """Any weights will do: some negative, one 0."""
    weight_B = torch.randn(5, dtype=torch.float64, generator=generator("weights"))
    weight_B[2] = 0
    assert (weight_B < 0).any()
    return weight_B
