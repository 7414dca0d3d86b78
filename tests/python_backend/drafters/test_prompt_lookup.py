"""Prompt lookup against a naive search, and its confidence against what really happened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.protocol import Context, DrafterStep, ProtocolError


def step_of(slot, past, tokens, depth, anchor=None, temperature=0.0):
    hot = np.array([temperature], dtype=np.float32)
    return DrafterStep.of([Context(slot, past, tokens, anchor=anchor)], depth, temperature=hot)


def naive(tokens, depth, max_ngram):
    for n in range(min(max_ngram, len(tokens)), 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                grown = list(tokens)
                for k in range(depth):
                    grown.append(grown[start + n + k])
                return grown[len(tokens) :]
    return []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 7))
def test_drafts_are_what_followed_the_longest_ngram_last_time(tokens, depth, chunk):
    drafter = PromptLookup("d", 2, 100, 8, 1, 3)
    for past in range(0, len(tokens), chunk):
        piece = tokens[past : past + chunk]
        last = past + chunk >= len(tokens)
        result = drafter.step(step_of(1, past, piece, depth, None if last else -1))
        if not last:
            assert (result.draft_ids == -1).all()
    drafts = naive(tokens, depth, 3)
    assert result.draft_ids[0].tolist() == drafts + [-1] * (depth - len(drafts))
    assert ((result.confidence[0] > 0) == (result.draft_ids[0] >= 0)).all()


def test_confidence_follows_its_own_hits():
    drafter = PromptLookup("d", 1, 5000, 4, 1, 2)
    tokens = [1, 2, 3, 4] * 300  # always right
    past = 0
    for end in range(8, len(tokens), 3):
        result = drafter.step(step_of(0, past, tokens[past:end], 4))
        past = end
    assert result.confidence[0, 0] > 0.95
    noise = np.random.default_rng(0).integers(0, 6, 2000).tolist()  # right by chance only
    drafter.release(np.array([0]))
    past = 0
    for end in range(8, len(noise), 1):
        result = drafter.step(step_of(0, past, noise[past:end], 4))
        past = end
    assert result.confidence[0, 0] < 0.4


def test_sampled_text_is_not_taken_to_repeat_itself_because_greedy_text_does():
    drafter = PromptLookup("d", 1, 5000, 4, 1, 2)
    past, tokens = 0, [1, 2, 3, 4] * 300
    for end in range(8, len(tokens), 3):
        greedy = drafter.step(step_of(0, past, tokens[past:end], 4)).confidence[0]
        past = end
    drafter.release(np.array([0]))
    sampled, untouched = (
        d.step(step_of(0, 0, tokens[:8], 4, temperature=0.7)).confidence[0]
        for d in (drafter, PromptLookup("d", 1, 5000, 4, 1, 2))
    )
    assert sampled.tolist() == untouched.tolist()
    assert (greedy > sampled + 0.2)[:3].all()  # no step brings more tokens


def test_a_new_sequence_in_a_slot_knows_nothing_of_the_old_one():
    drafter = PromptLookup("d", 1, 100, 4, 1, 3)
    drafter.step(step_of(0, 0, [5, 6, 7, 5, 6], 2))
    assert (drafter.step(step_of(0, 0, [5], 2)).draft_ids == -1).all()


def test_broken_contracts_are_named():
    drafter = PromptLookup("d", 2, 10, 4, 1, 3)
    drafter.step(step_of(0, 0, [1, 2, 3], 2))
    with pytest.raises(ProtocolError, match="'past_length' is 2 for slot 0, which holds 3"):
        drafter.step(step_of(0, 2, [4], 2))
    with pytest.raises(ProtocolError, match="'slot' is 2, limit 1"):
        drafter.step(step_of(2, 0, [1], 2))
    with pytest.raises(ProtocolError, match="11 rows, limit 10"):
        drafter.step(step_of(1, 0, [1] * 11, 2))
