"""The work of each mode against figures worked out by hand for two tiny models.

Both have 2 blocks of width 64 and a vocabulary of 512, a sketch of 80 = 10 x 8 numbers (16 x 16 for
what has a row for every token), and 3 samples of 16 tokens: 48 rows.
"""

import pytest

from dograph.config import RunConfig
from dograph.models.build import build_model
from dograph.train import forecast

SAMPLES, ROWS = 3, 48
# (inputs, outputs) of the matrices of a block
GPT2 = [(64, 192), (64, 64), (64, 256), (256, 64)]
LLAMA = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 176), (64, 176), (176, 64)]
NARROW, WIDE = 10 * 8, 16 * 16


@pytest.fixture(scope="module", params=["tiny", "llama-tiny"])
def case(request):
    model = build_model(request.param, vocab_size=512, seq_len=16, dropout=0.0, seed=0)
    gpt2 = request.param == "tiny"
    return model, GPT2 if gpt2 else LLAMA, gpt2


def extra_work(model, mode, *, half=True, projection="rademacher", two_sweeps=False):
    sketch = {"mode": mode, "dim": 80, "top_blocks": 1, "projection": projection}
    train = {"batch_size": SAMPLES, "dtype": "bfloat16" if half else "float32"}
    train |= {"micro_batch_size": 2} if two_sweeps else {}
    config = RunConfig(sketch=sketch, train=train, data={"seq_len": ROWS // SAMPLES})
    return forecast.extra_work(model, config, SAMPLES)


def total(work, what):
    pieces = [piece for piece in work if piece.what == what]
    return sum(piece.bytes for piece in pieces), sum(piece.flops for piece in pieces)


def matrix_bytes(shapes, size, slot):
    return sum(size * ROWS * (i + o) + 4 * SAMPLES * slot for i, o in shapes)


def table_bytes(size, q, slot):
    """Of an embedding: its gradient in float32, a row of the projection for each token."""
    return ROWS * (4 * 64 + size * q) + 4 * SAMPLES * slot


@pytest.mark.parametrize("half", [True, False])
def test_full_reads_every_input_and_output_gradient_once(case, half):
    model, block, gpt2 = case
    size = 2 if half else 4
    work = extra_work(model, "full", half=half)
    expected = 2 * matrix_bytes(block, size, NARROW) + matrix_bytes([(64, 512)], size, WIDE)
    expected += table_bytes(size, 16, WIDE)
    if gpt2:  # positions: 512 rows as well, so it is sketched as wide as the tokens are
        expected += table_bytes(size, 16, WIDE)
    assert total(work, "projection")[0] == expected
    smaller = 2 * sum(min(pair) for pair in block) + 64  # and of the head
    tables = 2 if gpt2 else 1
    assert total(work, "scaling")[0] == 2 * ROWS * (size * smaller + 4 * 64 * tables)
    # norms of width 64 (two a block and a last one), with biases in GPT-2; biases of matrices
    vectors = 5 * 64 * 2 + 2 * (192 + 64 + 256 + 64) if gpt2 else 5 * 64
    assert total(work, "vectors")[0] == 2 * 4 * SAMPLES * vectors


def test_flops_of_the_projections(case):
    model, block, gpt2 = case
    work = extra_work(model, "head")
    # (V, D) = (512, 64): 16 columns on either side, then their products summed over tokens
    assert total(work, "projection")[1] == 2 * ROWS * (512 * 16 + 64 * 16) + 2 * ROWS * WIDE
    hashed = extra_work(model, "head", projection="hashed")  # by the loss, as it makes b
    assert total(hashed, "projection")[1] == 2 * ROWS * 64 * 16 + 2 * ROWS * WIDE
    assert total(hashed, "projection")[0] == matrix_bytes([(64, 16)], 2, WIDE)
    top = extra_work(model, "topdown")
    # rows of the weight get 10 columns, columns 8; GPT-2's Conv1D has its inputs on the rows
    rows_first = [(i, o) if gpt2 else (o, i) for i, o in block]
    projected = sum(2 * ROWS * (r * 10 + c * 8) + 2 * ROWS * NARROW for r, c in rows_first)
    head = total(work, "projection")[1]
    assert total(top, "projection")[1] == projected + head


def test_a_cut_leaves_the_layers_below_alone(case):
    model, block, gpt2 = case
    residual = 2 * 4 * ROWS * 64
    head = extra_work(model, "head")
    assert total(head, "projection")[0] == matrix_bytes([(64, 512)], 2, WIDE)
    assert total(head, "scaling")[0] == 2 * 2 * ROWS * 64
    assert total(head, "residual scaled")[0] == residual
    assert total(head, "vectors")[0] == 0
    top = extra_work(model, "topdown")
    expected = matrix_bytes(block, 2, NARROW) + matrix_bytes([(64, 512)], 2, WIDE)
    assert total(top, "projection")[0] == expected
    assert total(top, "residual scaled")[0] == residual
    vectors = 3 * 64 * 2 + (192 + 64 + 256 + 64) if gpt2 else 3 * 64
    assert total(top, "vectors")[0] == 2 * 4 * SAMPLES * vectors


def test_exact_writes_every_gradient_and_reads_it_twice(case):
    model, block, gpt2 = case
    work = extra_work(model, "exact")
    blocks = 2 * sum(i * o for i, o in block)
    tables = 4 * 512 * 64 * (2 if gpt2 else 1)  # tied in GPT-2; its positions are 512 rows too
    once = SAMPLES * (2 * blocks + tables + (0 if gpt2 else 2 * 512 * 64))
    for what in ("gradients written", "gradients sketched", "gradients weighted"):
        assert total(work, what)[0] == once
    numbers = blocks + 512 * 64 * 2
    assert total(work, "gradients weighted")[1] == 2 * SAMPLES * numbers


def test_exact_multiplies_every_gradient_by_a_dense_projection(case):
    model, block, _ = case
    numbers = 2 * sum(i * o for i, o in block) + 2 * 512 * 64  # tokens, and positions or the head
    dense = extra_work(model, "exact", projection="gaussian")
    assert total(dense, "gradients sketched")[1] == 2 * SAMPLES * numbers * 80
    as_is = extra_work(model, "exact", projection="none")
    assert total(as_is, "gradients sketched")[1] == 0


def test_gradients_by_sample_twice_over_and_one_by_one(case):
    model, block, _ = case
    forward = 2 * ROWS * (2 * sum(i * o for i, o in block) + 64 * 512)
    forward += 2 * (2 * (2 * ROWS * 16 * 64))
    once = extra_work(model, "exact")
    assert total(once, "forward again") == total(once, "backward again") == (0, 0)
    swept = extra_work(model, "exact", two_sweeps=True)
    assert total(swept, "forward again")[1] == forward
    assert total(swept, "backward again")[1] == 2 * forward
    assert total(swept, "gradients weighted") == (0, 0)  # the second sweep is a plain step
    slow = extra_work(model, "reference")
    assert total(slow, "a backward for every other sample")[1] == (SAMPLES - 1) * 2 * forward


def test_a_second_backward_is_a_third_of_the_step(case):
    model, block, _ = case
    work = extra_work(model, "twopass")
    matrices = 2 * ROWS * (2 * sum(i * o for i, o in block) + 64 * 512)
    attention = 2 * (2 * ROWS * 16 * 64) * 2
    assert total(work, "backward to the activations")[1] == matrices + 2 * attention
    assert total(work, "scaling") == (0, 0)


def test_two_sweeps_run_forward_again_and_backward_to_the_cut(case):
    model, block, _ = case
    attention = 2 * (2 * ROWS * 16 * 64)  # of one block, forward
    blocks, head = sum(i * o for i, o in block), 64 * 512
    forward = 2 * ROWS * (2 * blocks + head) + 2 * attention
    for mode, back in (("full", (2, 2)), ("topdown", (1, 1)), ("head", (0, 0))):
        work = extra_work(model, mode, two_sweeps=True)
        assert total(work, "forward again")[1] == forward
        expected = 2 * ROWS * (back[0] * blocks + head) + 2 * back[1] * attention
        assert total(work, "backward to the activations")[1] == expected
        assert total(work, "scaling") == (0, 0)
