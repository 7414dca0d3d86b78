"""Messages survive the wire, and broken ones are refused by name."""

import dataclasses

import numpy as np
import pytest

from python_backend.protocol import DrafterResult, ProtocolError, TargetResult, TargetStep, row_starts
from python_backend.sampling.params import SamplingParams, columns


def a_step(**changes):
    params = [
        SamplingParams(bad_words=((1, 2), (3,)), end_ids=(7,), min_tokens=2),
        SamplingParams(seed=2**64 - 1, temperature=1.0),
    ]
    fields = {
        **columns(params, [3, 4]),
        "slot": np.array([0, 1], dtype=np.int32),
        "past_length": np.array([3, 0], dtype=np.int32),
        "row_count": np.array([2, 4], dtype=np.int32),
        "sample": np.array([True, False]),
        "draft_count": np.array([1, 0], dtype=np.int32),
        "token_ids": np.arange(6, dtype=np.int32),
    }
    return TargetStep(**fields | changes)


def test_a_step_survives_encoding():
    step = a_step()
    again = TargetStep.decode(step.encode())
    for field in dataclasses.fields(step):
        assert np.array_equal(getattr(step, field.name), getattr(again, field.name)), field.name
    assert again.seed[1] == 2**64 - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"past_length": np.array([3], dtype=np.int32)}, "'past_length' has 1 entries, expected B = 2"),
        ({"token_ids": np.arange(5, dtype=np.int32)}, "'token_ids' has 5 entries, expected R = 6"),
        ({"row_count": np.array([6, 0], dtype=np.int32)}, "'row_count' is 0 for sequence 1, minimum 1"),
        ({"draft_count": np.array([2, 0], dtype=np.int32)}, "'draft_count' is 2 for sequence 0, limit 1"),
        ({"past_length": np.array([-1, 0], dtype=np.int32)}, "'past_length' is -1 for sequence 0"),
    ],
)
def test_broken_messages_are_refused_by_name(changes, message):
    with pytest.raises(ProtocolError, match=message):
        TargetStep.decode(a_step(**changes).encode())


def test_missing_and_mistyped_tensors_are_refused_by_name():
    tensors = a_step().encode()
    with pytest.raises(ProtocolError, match="'slot' has dtype int64, expected int32"):
        TargetStep.decode(tensors | {"slot": tensors["slot"].astype(np.int64)})
    del tensors["past_length"]
    with pytest.raises(ProtocolError, match="'past_length' is missing"):
        TargetStep.decode(tensors)


def test_columns_that_hold_their_default_do_not_travel():
    greedy = a_step(**columns([SamplingParams()] * 2, [3, 4]))
    tensors = greedy.encode()
    assert tensors.keys() == {"slot", "past_length", "row_count", "sample", "draft_count", "token_ids"}
    again = TargetStep.decode(tensors)
    for field in dataclasses.fields(greedy):
        assert np.array_equal(getattr(greedy, field.name), getattr(again, field.name)), field.name
        assert getattr(again, field.name).dtype == field.metadata["dtype"], field.name


def test_a_result_without_features_or_log_probs_stays_small():
    zeros = np.zeros(2, np.int32)
    result = TargetResult(zeros, zeros, zeros, np.zeros((0, 0), np.float32), zeros, np.zeros(0, np.float32))
    assert result.encode().keys() == {"accepted", "next_token", "engine_ms"}
    assert TargetResult.decode(result.encode()).features.shape == (0, 0)


def test_drafts_and_confidences_have_one_shape():
    with pytest.raises(ProtocolError, match="same \\[B, D\\]"):
        DrafterResult(np.zeros((2, 3), np.int32), np.zeros((2, 2), np.float32)).check()


def test_row_starts_are_offsets():
    assert row_starts(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
