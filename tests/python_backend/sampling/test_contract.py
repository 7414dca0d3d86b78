"""What sampling does not take is refused before anything changes, naming tensor, sequence, value and limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from python_backend.engines.slots import Slots
from python_backend.protocol import Part, ProtocolError, TargetStep
from python_backend.sampling.contract import check_sampling
from python_backend.sampling.params import SamplingParams, columns
from tests.support.checkpoints import make_step

VOCABULARY = 50
USED = SamplingParams(temperature=1.0, min_tokens=2, end_ids=(4, 5), bad_words=((1, 2), (3,)))
NAN, INF, BEYOND = float("nan"), float("inf"), 2**31 - 1


def step_with(name: str, value: float) -> TargetStep:
    """Two sequences, the second of which has this value in a column."""
    step = make_step(Part(0, 0, [7, 8]), Part(3, 0, [9]), **columns([USED, USED], [2, 1]))
    values = getattr(step, name).copy()
    values[-1] = value
    return replace(step, **{name: values})


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("temperature", NAN, "0 to 3.40282347e+38"),
        ("temperature", INF, "0 to"),
        ("temperature", -1.0, "0 to"),
        ("top_k", -1, "0 to"),
        ("top_p", NAN, "0 to 1"),
        ("top_p", 1.5, "0 to 1"),
        ("min_p", -0.5, "0 to 1"),
        ("repetition_penalty", 0.0, "1.17549435e-38 to"),
        ("repetition_penalty", INF, "to 3.40282347e+38"),
        ("presence_penalty", -INF, "-3.40282347e+38 to"),
        ("frequency_penalty", NAN, "-3.40282347e+38 to"),
        ("prompt_length", -1, "0 to"),
        ("min_tokens", -1, "0 to"),
        ("end_ids", -1, "0 to 49"),
        ("end_ids", VOCABULARY, "0 to 49"),
        ("end_ids", BEYOND, "0 to 49"),
        ("bad_word_ids", -1, "0 to 49"),
        ("bad_word_ids", VOCABULARY, "0 to 49"),
    ],
)
def test_a_value_beyond_its_limit_is_refused(name: str, value: float, limit: str) -> None:
    slots, step = Slots(4, 16, VOCABULARY), step_with(name, value)
    with pytest.raises(ProtocolError) as caught:
        slots.begin(step)
    for part in (f"'{name}'", "sequence 1", str(getattr(step, name)[-1]), limit):
        assert part in str(caught.value)
    assert not slots.history.tokens.any()


def test_a_word_without_tokens_is_refused() -> None:
    step = step_with("bad_word_length", 0)
    with pytest.raises(ProtocolError, match="'bad_word_length' is 0 for sequence 1, limit 1 to"):
        check_sampling(step, VOCABULARY)


@pytest.mark.parametrize("name", ["end_id_count", "bad_word_count", "bad_word_length"])
def test_lists_of_another_length_than_counted_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match=f"expected .*: the sum of '{name}'"):
        check_sampling(step_with(name, 9), VOCABULARY)


def test_the_edges_themselves_are_taken() -> None:
    largest, tiny = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    for params in (
        SamplingParams(temperature=largest, top_k=10**12, top_p=1.0, min_p=1.0, repetition_penalty=largest),
        SamplingParams(repetition_penalty=tiny, presence_penalty=-largest, frequency_penalty=largest),
        SamplingParams(min_tokens=10**12, end_ids=(0, VOCABULARY - 1), bad_words=((VOCABULARY - 1,),)),
    ):
        check_sampling(make_step(Part(0, 0, [7]), **columns([params], [1])), VOCABULARY)
