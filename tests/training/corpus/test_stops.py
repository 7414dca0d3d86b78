from __future__ import annotations

from training.corpus.stops import LOOP_NGRAM, StopRule

END = 2


def stop_of(tokens, cap=1000):
    """Where and why an answer of these tokens ends."""
    rule = StopRule((END,), cap)
    for i, token in enumerate(tokens):
        if stop := rule.add(token):
            return i + 1, stop
    return None


def test_an_answer_ends_with_its_end_token():
    assert stop_of([5, 6, END, 7]) == (3, "end")


def test_an_answer_ends_at_its_cap():
    assert stop_of(range(10, 100), cap=20) == (20, "cap")


def test_a_loop_ends_when_a_12_gram_comes_the_third_time():
    sentence = list(range(10, 10 + LOOP_NGRAM))
    assert stop_of([*sentence, 90, *sentence, 91, *sentence, 92]) == (3 * LOOP_NGRAM + 2, "loop")


def test_a_12_gram_that_comes_twice_is_no_loop():
    sentence = list(range(10, 10 + LOOP_NGRAM))
    assert stop_of([*sentence, 90, *sentence, 91, *sentence[:-1], 92]) is None


def test_one_token_for_ever_is_a_loop():
    assert stop_of([7] * 100) == (LOOP_NGRAM + 2, "loop")
