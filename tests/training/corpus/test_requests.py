from __future__ import annotations

from itertools import islice

import pytest

from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.settings import WORKLOADS
from training.corpus.grammar import load_grammar
from training.corpus.requests import CAP, LONG_CAP, MIX, RequestSource, read_format


@pytest.fixture(scope="module")
def tokenizer(embedded):
    return load_tokenizer(embedded)


def test_conversations_are_tokenised_as_the_chat_template_does(tokenizer):
    chat = read_format(tokenizer)
    turns = [("user", "Is 7 prime?"), ("assistant", "Yes."), ("user", "Why?")]
    expected = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns], add_generation_prompt=True, return_dict=False
    )
    first, answer, second = (tuple(tokenizer(t, add_special_tokens=False)["input_ids"]) for _, t in turns)
    end = (tokenizer.eos_token_id,)
    ids = (*chat.before_user, *first, *chat.after_user, *answer, *end, *chat.between, *second, *chat.after_user)
    assert list(ids) == list(expected)


def test_the_same_seed_gives_the_same_requests_and_another_one_others(tokenizer):
    first, again, other = (
        list(islice(RequestSource(tokenizer, (seed, 0), held_out=False).endless(), 50)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_domains_come_in_the_proportions_of_the_mix(tokenizer):
    drawn = list(islice(RequestSource(tokenizer, (1, 0), held_out=False).endless(), 3000))
    for domain in WORKLOADS:
        assert sum(r.domain == domain for r in drawn) / len(drawn) == pytest.approx(MIX[domain], abs=0.03)
    assert sum(r.temperature == 0 for r in drawn) / len(drawn) == pytest.approx(0.5, abs=0.03)
    assert sum(r.magpie for r in drawn) / len(drawn) == pytest.approx(0.5, abs=0.03)
    assert {r.cap for r in drawn} == {CAP, LONG_CAP}


def test_evaluation_asks_the_same_prompts_at_every_temperature(tokenizer):
    greedy, drawn = (RequestSource(tokenizer, (7,), held_out=True).evaluation(20, t) for t in (0.0, 1.0))
    assert [r.prompt for r in greedy] == [r.prompt for r in drawn]
    assert {r.temperature for r in greedy} == {0.0}
    assert {r.temperature for r in drawn} == {1.0}
    assert [sum(r.domain == d for r in greedy) for d in WORKLOADS] == [20, 20, 20]


def test_no_held_out_topic_occurs_in_a_training_prompt(tokenizer):
    source = RequestSource(tokenizer, (1, 0), held_out=False)
    texts = [tokenizer.decode(r.prompt) for r in islice(source.endless(), 1500) if not r.magpie]
    held_out = load_grammar("chat").split(True).lists["errand"] + load_grammar("code").split(True).lists["snippet"]
    assert held_out
    assert not [entry for entry in held_out for text in texts if entry in text]
