from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.toy import ToyTarget, toy_decode
from tests.training.writing import CHAT, request, write
from training.corpus.sampler import LONGEST_TURN, SHORTEST_ANSWER


def prompts(count):
    return [request((11, 12, 20 + i, 30 + i % 7, 13, 14), cap=10 + i) for i in range(count)]


def end_of(prompt, at):
    """A token that the toy's answer holds first at this place."""
    answer = toy_decode(list(prompt), at + 1)
    assert answer[at] not in answer[:at]
    return answer[at]


def test_argmax_answers_are_what_plain_decoding_gives():
    for written in write(prompts(30)):
        start = written.response_start
        assert start == len(written.request.prompt)
        assert list(written.ids[start:]) == toy_decode(list(written.request.prompt), written.request.cap)
        assert written.stop == "cap"


def test_every_request_is_answered_once_with_fewer_slots_than_requests():
    asked = prompts(30)
    written = write(asked, ToyTarget(slots=4, feature_size=4))
    assert sorted(w.request.prompt for w in written) == sorted(r.prompt for r in asked)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_does_not_depend_on_who_else_is_written(temperature):
    asked = [replace(r, temperature=temperature, seed=i) for i, r in enumerate(prompts(12))]
    together = {w.request.seed: w.ids for w in write(asked)}
    alone = {w.request.seed: w.ids for r in asked for w in write([r], ToyTarget(slots=1, feature_size=4))}
    assert together == alone


def test_features_are_those_of_their_position_and_the_last_token_has_none():
    for written in write(prompts(30), ToyTarget(slots=4, feature_size=4)):
        assert written.features[:, 0].tolist() == list(range(1, len(written.ids)))  # the toy's feature: position + 1


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks():
    long = request(tuple(20 + i % 50 for i in range(200)), cap=8)
    engine = ToyTarget(slots=4, feature_size=4)
    (written,) = write([long], engine)
    assert max(step.row_count.max() for step in engine.steps) < 200
    assert list(written.ids[200:]) == toy_decode(list(long.prompt), 8)
    assert written.features[:, 0].tolist() == list(range(1, 208))


def test_a_request_that_does_not_fit_is_passed_over():
    assert len(write([request(cap=300), *prompts(1)])) == 1


def test_no_request_is_taken_once_there_are_enough_tokens():
    assert len(write(prompts(30), ToyTarget(slots=1, feature_size=4), enough=21)) == 2  # 10 tokens, then 11


def test_an_answer_ends_with_the_end_token():
    asked = request()
    end = end_of(asked.prompt, 6)
    (written,) = write([asked], end_ids=(end,))
    assert written.ids[-1] == end
    assert written.response_length == 7
    assert written.stop == "end"


def test_an_answer_too_short_is_dropped():
    asked = request()
    assert write([asked], end_ids=(end_of(asked.prompt, SHORTEST_ANSWER - 2),)) == []


def test_a_short_answer_is_followed_by_the_second_turn_and_its_answer():
    follow_up = (*CHAT.between, 21, *CHAT.after_user)
    asked = request(follow_up=follow_up)
    end = end_of(asked.prompt, 6)
    (written,) = write([asked], end_ids=(end,))
    context = [*asked.prompt, *toy_decode(list(asked.prompt), 7), *follow_up]
    assert list(written.ids[: written.response_start]) == context
    answer = toy_decode(context, asked.cap)
    answer = answer[: answer.index(end) + 1] if end in answer else answer
    assert list(written.ids[written.response_start :]) == answer


def test_the_model_writes_the_user_turn_and_then_answers_it():
    asked = request((11, 12), magpie=True)
    turns = 0
    for end in range(20, 90):  # whichever token the model happens to end its turn with
        for written in write([asked], end_ids=(end,)):
            turns += 1
            turn = written.ids[2 : written.response_start - 2]
            assert written.ids[:2] == CHAT.before_user
            assert written.ids[written.response_start - 2 : written.response_start] == CHAT.after_user
            assert end not in turn
            answer = toy_decode(list(written.ids[: written.response_start]), asked.cap)
            answer = answer[: answer.index(end) + 1] if end in answer else answer
            assert list(written.ids[written.response_start :]) == answer
    assert turns


def test_a_user_turn_without_an_end_is_dropped():
    engine = ToyTarget(feature_size=4)
    assert write([request((11, 12), magpie=True)], engine) == []
    assert len(engine.steps) == LONGEST_TURN + 1


def test_a_user_turn_with_a_control_token_is_dropped():
    assert write([request((11, 12), magpie=True)], control=frozenset(range(96))) == []
