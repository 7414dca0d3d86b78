"""Which rows each KV slot holds, and the checks of a step against them; shared by all target engines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.checks import check_held, check_known, check_slots, first
from python_backend.protocol import Array, PrefixQuery, ProtocolError, TargetStep, row_starts
from python_backend.rows import row_owners
from python_backend.sampling.contract import check_sampling
from python_backend.sampling.history import TokenHistory
from python_backend.settings import CoordinatorSettings, TargetSettings


class Slots:
    """Committed length and token history of every slot. A sequence begins with `open`, or a step at past_length 0."""

    def __init__(self, slots: int, max_length: int, vocabulary_size: int) -> None:
        self.count = slots
        self.max_length = max_length
        self.vocabulary_size = vocabulary_size
        self.stored: npt.NDArray[np.int32] = np.zeros(slots, dtype=np.int32)
        self.history = TokenHistory(slots, max_length)

    def open(self, opening: PrefixQuery) -> list[npt.NDArray[np.int32]]:
        """Begin a sequence in each slot, and note its prompt. Returns each prompt's tokens.

        Raises ProtocolError naming the tensor, the value and the limit; nothing has changed then.
        """
        opening.check()
        check_slots(opening.slot, self.count)
        self._check_ends(opening.slot, np.zeros_like(opening.row_count), opening.row_count)
        self._check_tokens(opening.token_ids)
        prompts = np.split(opening.token_ids, row_starts(opening.row_count)[1:-1])
        for slot, tokens in zip(opening.slot, prompts, strict=True):
            self.history.tokens[slot, : len(tokens)] = tokens
        self.stored[opening.slot] = 0
        return prompts

    def begin(self, step: TargetStep) -> None:
        """Check a step, roll its slots back to past_length and note its tokens.

        Raises ProtocolError naming the tensor, the value and the limit; nothing has changed then.
        """
        self.check(step)
        self.stored[step.slot] = step.past_length
        self.history.write(step)

    def commit(self, step: TargetStep, accepted: Array) -> npt.NDArray[np.int32]:
        """[B] rows that the step adds to each slot: its prompt rows or anchor, and the accepted drafts."""
        committed = (step.row_count - step.draft_count + accepted).astype(np.int32)
        self.stored[step.slot] = step.past_length + committed
        return committed

    def release(self, slot: Array) -> None:
        """Empty the slots. Raises ProtocolError for a slot that does not exist."""
        check_known(slot, self.count)
        self.stored[slot] = 0

    def check(self, step: TargetStep) -> None:
        """Raise ProtocolError where a step breaks the contract."""
        step.check()
        check_slots(step.slot, self.count)
        check_held(step.slot, step.past_length, self.stored)
        self._check_ends(step.slot, step.past_length, step.row_count)
        self._check_tokens(step.token_ids)
        check_sampling(step, self.vocabulary_size)

    def _check_ends(self, slot: Array, past: Array, count: Array) -> None:
        i = first(past.astype(np.int64) + count > self.max_length)
        if i is not None:
            raise ProtocolError(
                f"tensor 'row_count' is {count[i]} for slot {slot[i]} after {past[i]} rows, limit {self.max_length} "
                "in all"
            )

    def _check_tokens(self, token_ids: Array) -> None:
        i = first((token_ids < 0) | (token_ids >= self.vocabulary_size))
        if i is not None:
            raise ProtocolError(
                f"tensor 'token_ids' is {token_ids[i]} in row {i}, limit 0 to {self.vocabulary_size - 1}"
            )


def feature_counts(step: TargetStep, committed: Array) -> Array:
    """[B] committed rows whose features somebody reads."""
    return np.where(np.isin(step.slot, step.unread), 0, committed).astype(np.int32) if len(step.unread) else committed


def committed_rows(step: TargetStep, committed: Array) -> npt.NDArray[np.int64]:
    """[C] packed rows that were committed: the first committed[i] of each sequence."""
    owner, offset = row_owners(committed)
    return row_starts(step.row_count)[owner] + offset


def check_fits(max_position: int, layers: int, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
    """Raise ValueError where the settings ask for more than the model has."""
    if coordinator.max_length > max_position:
        raise ValueError(
            f"coordinator.max_length is {coordinator.max_length}, limit {max_position}: the positions of "
            f"'{target.checkpoint}'"
        )
    if wrong := [i for i in target.feature_layers if not 0 <= i <= layers]:
        raise ValueError(f"target.feature_layers names layer {wrong[0]}, limit 0 to {layers} (the final norm's output)")
