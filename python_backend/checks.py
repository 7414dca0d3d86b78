"""What a step must fulfil of the slots and features that it names, whichever engine answers it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.protocol import Array, Description, ProtocolError


def feature_columns(target: Description, drafter: Description) -> npt.NDArray[np.int64]:
    """[F] columns of the target's features that a drafter reads, in its own order of layers."""
    width = target.feature_size // max(len(target.feature_layers), 1)
    at = [target.feature_layers.index(layer) for layer in drafter.feature_layers]
    return (np.array(at, dtype=np.int64)[:, None] * width + np.arange(width)).reshape(-1)


def check_slots(slot: Array, count: int) -> None:
    """Raise ProtocolError for a slot that does not exist, or is named twice in one step."""
    check_known(slot, count)
    names, repeats = np.unique(slot, return_counts=True)
    if (repeats > 1).any():
        raise ProtocolError(f"tensor 'slot' names slot {names[repeats > 1][0]} twice in one step, limit once")


def check_known(slot: Array, count: int) -> None:
    """Raise ProtocolError for a slot that does not exist."""
    i = first((slot < 0) | (slot >= count))
    if i is not None:
        raise ProtocolError(f"tensor 'slot' is {slot[i]} for sequence {i}, limit 0 to {count - 1}")


def check_held(slot: Array, past: Array, stored: Array) -> None:
    """Raise ProtocolError where a step builds on more rows than its slot holds. stored: of every slot."""
    i = first(past > stored[slot])
    if i is not None:
        raise ProtocolError(
            f"tensor 'past_length' is {past[i]} for slot {slot[i]}, limit {stored[slot[i]]}: more than the slot holds"
        )


def first(wrong: npt.NDArray[np.bool_]) -> int | None:
    """Index of the first true entry."""
    return int(wrong.argmax()) if wrong.any() else None
