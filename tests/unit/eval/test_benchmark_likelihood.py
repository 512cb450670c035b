"""Likelihoods in batches, against one text at a time; and where a continuation begins."""

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dograph.errors import ConfigError
from dograph.eval.scores import PromptEncoder, Scorer
from dograph.eval.tasks import Item
from dograph.models.loss import PerSampleLoss

EOT = "<|endoftext|>"
PAIRS = [
    ("the cat sat", " on the mat"),
    ("a", " dog ran far away over the hill and far away"),
    ("the cat sat on the mat and the dog ran far away", " over"),
    ("the dog  ", " ran"),
    ("over the hill", "\nthe cat"),
    ("the cat sat", " on the hill"),
]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[EOT], initial_alphabet=alphabet)
    made.train_from_iterator(["".join(pair) for pair in PAIRS] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module")
def model(tokenizer):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=64,
            n_embd=16,
            n_layer=2,
            n_head=2,
            initializer_range=0.5,
        )
        return GPT2LMHeadModel(config).double().eval()


def scorer(model, tokenizer, max_length=64, batch_size=4):
    return Scorer(
        model=PerSampleLoss(model, model.config.vocab_size),
        encoder=PromptEncoder(tokenizer, 0),
        max_length=max_length,
        batch_size=batch_size,
    )


def quiet(done, total):
    pass


def texts(scorer, pairs):
    return scorer.texts([Item(tuple(pairs), 0)])


def scores(scorer, pairs, report=quiet):
    return scorer.score(texts(scorer, pairs), report)


def one_by_one(model, context_ids, continuation_ids):
    """Log-likelihood and greediness, from the logits of the whole text alone in its batch."""
    ids = torch.tensor([context_ids + continuation_ids])
    with torch.no_grad():
        log_p = F.log_softmax(model(ids).logits[0], dim=-1)
    total, greedy = 0.0, True
    for position in range(len(context_ids), ids.shape[1]):
        total += float(log_p[position - 1, ids[0, position]])
        greedy &= int(log_p[position - 1].argmax()) == int(ids[0, position])
    return total, greedy


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_batch_is_as_good_as_one_text_at_a_time(model, tokenizer, batch_size):
    ours = scorer(model, tokenizer, batch_size=batch_size)
    for pair, found in zip(PAIRS, scores(ours, PAIRS), strict=True):
        nats, greedy = one_by_one(model, *ours.encoder.pair(*pair))
        assert found.nats == pytest.approx(nats, rel=1e-12)
        assert found.greedy == greedy
    assert not any(text.truncated for text in texts(ours, PAIRS))


def test_logits_of_every_token_give_the_same(model, tokenizer):
    plain, whole = scorer(model, tokenizer), scorer(model, tokenizer)
    whole.model.has_plain_head = False
    for a, b in zip(scores(plain, PAIRS), scores(whole, PAIRS), strict=True):
        assert a.nats == pytest.approx(b.nats, rel=1e-12)
        assert a.greedy == b.greedy


def test_what_the_model_would_write_is_greedy_and_nothing_else(model, tokenizer):
    ours, continued = scorer(model, tokenizer), 0
    words = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away", "over", "hill"]
    for context in [f"{a} {b}" for a in words for b in words]:
        ids = tokenizer.encode(context)
        best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        pair = (context, tokenizer.decode([best]))
        if ours.encoder.pair(*pair) == (ids, [best]):  # else no text has that token there
            other = (context, " " if best != tokenizer.encode(" ")[0] else "!")
            assert [one.greedy for one in scores(ours, [pair, other])] == [True, False]
            continued += 1
    assert continued > 0


def test_a_long_text_loses_its_beginning_and_never_its_last_tokens(model, tokenizer):
    max_length = 9
    ours = scorer(model, tokenizer, max_length=max_length)
    cut = 0
    shown_texts = texts(ours, PAIRS)
    for pair, text, found in zip(PAIRS, shown_texts, scores(ours, PAIRS), strict=True):
        context, continuation = ours.encoder.pair(*pair)
        surplus = len(context) + len(continuation) - (max_length + 1)
        assert text.truncated == (surplus > 0)
        cut += text.truncated
        if surplus > 0:
            shown = (context + continuation)[surplus:]
            scored = min(len(continuation), max_length)
            nats, greedy = one_by_one(model, shown[:-scored], shown[-scored:])
            assert found.nats == pytest.approx(nats, rel=1e-12)
            assert found.greedy == greedy
    assert 0 < cut < len(PAIRS)


def test_an_answer_too_long_for_the_model_is_scored_by_its_end(model, tokenizer):
    ours = scorer(model, tokenizer, max_length=4)
    (text,) = texts(ours, [PAIRS[1]])
    assert text.answer_cut
    assert (len(text.ids), text.scored) == (5, 4)


def test_results_keep_the_order_of_the_questions_and_progress_reaches_the_end(model, tokenizer):
    ours, seen = scorer(model, tokenizer, batch_size=4), []
    forward = scores(ours, PAIRS, lambda *now: seen.append(now))
    backward = scores(ours, PAIRS[::-1])
    assert [x.nats for x in forward] == pytest.approx([x.nats for x in backward[::-1]], rel=1e-12)
    assert seen == [(4, 6), (6, 6)]
    assert scores(ours, PAIRS) == forward


def test_half_precision_has_its_softmax_in_single(model, tokenizer):
    half = GPT2LMHeadModel(model.config).bfloat16().eval()
    half.load_state_dict(model.state_dict())
    ours = scorer(half, tokenizer, batch_size=1)
    for pair, found in zip(PAIRS, scores(ours, PAIRS), strict=True):
        context, continuation = ours.encoder.pair(*pair)
        ids = torch.tensor([context + continuation])
        with torch.no_grad():
            log_p = F.log_softmax(half(ids[:, :-1]).logits[0].float(), dim=-1)
        picked = log_p.gather(1, ids[0, 1:, None])[-len(continuation) :]
        assert found.nats == pytest.approx(float(picked.sum()), rel=1e-6)


def test_white_space_that_ends_a_context_opens_the_continuation(tokenizer):
    encoder = PromptEncoder(tokenizer, 0)
    context, continuation = encoder.pair("the dog  ", "ran")
    assert tokenizer.decode(context) == "the dog"
    assert tokenizer.decode(continuation) == "  ran"
    assert context + continuation == tokenizer.encode("the dog  ran")


def test_an_empty_context_becomes_the_start_of_text(tokenizer):
    encoder = PromptEncoder(tokenizer, 0)
    assert encoder.pair("", "the cat") == ([0], tokenizer.encode("the cat"))
    assert encoder.pair("", f"{EOT}the cat") == ([0], tokenizer.encode("the cat"))


def test_a_continuation_that_merged_into_its_context_is_encoded_alone():
    made = Tokenizer(models.WordLevel({"ab": 0, "a": 1, "b": 2, "": 3, "?": 4}, unk_token="?"))
    encoder = PromptEncoder(PreTrainedTokenizerFast(tokenizer_object=made), 3)
    assert encoder.pair("a", "b") == ([1], [2])


def test_the_start_of_text_is_the_tokenizers_own_before_the_corpus(tokenizer):
    assert PromptEncoder(tokenizer, 7).prefix_id == 7
    assert PromptEncoder(tokenizer).prefix_id == 0  # it has a token of that name
    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=EOT)
    assert PromptEncoder(own, 7).prefix_id == 0
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))
    with pytest.raises(ConfigError, match="no BOS and no EOS token"):
        PromptEncoder(bare)


def test_a_start_that_the_tokenizer_adds_is_there_once(tokenizer):
    made = Tokenizer.from_str(tokenizer._tokenizer.to_str())
    made.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", special_tokens=[(EOT, 0)]
    )
    encoder = PromptEncoder(PreTrainedTokenizerFast(tokenizer_object=made, bos_token=EOT))
    plain = PromptEncoder(tokenizer, 0)
    context, continuation = plain.pair("the cat sat", " on the mat")
    assert encoder.pair("the cat sat", " on the mat") == ([0, *context], continuation)
    assert encoder.pair(f"{EOT}the cat sat", " on the mat") == ([0, *context], continuation)
    assert encoder.pair("", "the cat") == ([0], plain.encode("the cat"))
