"""A step that breaks the contract is refused by name, value and limit, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.engines.slots import Slots
from python_backend.protocol import Part, ProtocolError
from tests.support.checkpoints import make_step


@pytest.fixture
def slots() -> Slots:
    """Four slots of ten rows; slot 1 holds six."""
    slots = Slots(4, 10, 100)
    step = make_step(Part(1, 0, range(6)))
    slots.begin(step)
    slots.commit(step, np.array([0]))
    return slots


VIOLATIONS = {
    "unknown slot": (make_step(Part(4, 0, [1])), "'slot' is 4 for sequence 0, limit 0 to 3"),
    "negative slot": (make_step(Part(0, 0, [1]), Part(-1, 0, [1])), "'slot' is -1 for sequence 1, limit 0 to 3"),
    "slot twice": (make_step(Part(2, 0, [1]), Part(2, 0, [1])), "'slot' names slot 2 twice"),
    "past beyond stored": (make_step(Part(1, 7, [1])), "'past_length' is 7 for slot 1, limit 6"),
    "past in an empty slot": (make_step(Part(0, 1, [1])), "'past_length' is 1 for slot 0, limit 0"),
    "negative past": (make_step(Part(1, -1, [1])), "'past_length' is -1 for sequence 0, minimum 0"),
    "beyond max length": (make_step(Part(1, 6, [1] * 5)), "'row_count' is 5 for slot 1 after 6 rows, limit 10"),
    "no rows": (make_step(Part(1, 6, [])), "'row_count' is 0 for sequence 0, minimum 1"),
    "all rows drafts": (make_step(Part(1, 6, [1], drafts=1)), "'draft_count' is 1 for sequence 0, limit 0"),
    "token too large": (make_step(Part(1, 6, [1, 100])), "'token_ids' is 100 in row 1, limit 0 to 99"),
    "token negative": (make_step(Part(1, 6, [-1])), "'token_ids' is -1 in row 0, limit 0 to 99"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_names_tensor_value_and_limit_and_changes_nothing(slots: Slots, name: str) -> None:
    step, message = VIOLATIONS[name]
    before = slots.stored.copy(), slots.history.tokens.copy()
    with pytest.raises(ProtocolError, match=message.replace("(", r"\(")):
        slots.begin(step)
    np.testing.assert_array_equal(slots.stored, before[0])
    np.testing.assert_array_equal(slots.history.tokens, before[1])


def test_rejected_drafts_are_not_stored(slots: Slots) -> None:
    step = make_step(Part(1, 6, [1, 2, 3, 4], drafts=3))
    slots.begin(step)
    assert slots.commit(step, np.array([1])).tolist() == [2]
    assert slots.stored[1] == 8


def test_a_pass_that_fails_leaves_the_slot_at_what_was_rolled_back_to(slots: Slots) -> None:
    slots.begin(make_step(Part(1, 3, [1, 2])))  # no commit follows
    with pytest.raises(ProtocolError, match="limit 3"):
        slots.begin(make_step(Part(1, 4, [1])))


def test_history_holds_the_tokens_of_each_slot(slots: Slots) -> None:
    slots.begin(make_step(Part(3, 0, [7, 8]), Part(1, 4, [9])))
    assert slots.history.tokens[3, :2].tolist() == [7, 8]
    assert slots.history.tokens[1, :5].tolist() == [0, 1, 2, 3, 9]


def test_release_empties_a_slot_and_refuses_one_that_does_not_exist(slots: Slots) -> None:
    slots.release(np.array([1]))
    with pytest.raises(ProtocolError, match="limit 0"):
        slots.begin(make_step(Part(1, 1, [1])))
    with pytest.raises(ProtocolError, match="'slot' is 9"):
        slots.release(np.array([9]))
