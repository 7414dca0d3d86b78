"""What a drafter holds of each slot: how many rows of committed context. Their keys and values are its session's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.checks import check_held, check_known, check_slots
from python_backend.drafters.config import DrafterConfig
from python_backend.protocol import NO_TOKEN, Array, DrafterStep, ProtocolError
from python_backend.sampling.contract import check_sampling


class Context:
    """Counts rows; a draft's own rows lie beyond the committed ones until the next."""

    def __init__(self, config: DrafterConfig, slots: int, max_length: int) -> None:
        self.config, self.slots, self.max_length = config, slots, max_length
        self.stored: npt.NDArray[np.int32] = np.zeros(slots, dtype=np.int32)

    @property
    def room(self) -> int:
        """Rows of memory that a slot needs: the longest text, and a draft beyond it."""
        return self.max_length + self.config.depth + 1

    def begin(self, step: DrafterStep) -> None:
        """Check a step and roll its slots back to past_length. Raises ProtocolError naming the tensor, the value and
        the limit; nothing has changed then."""
        step.check()
        check_slots(step.slot, self.slots)
        check_held(step.slot, step.past_length, self.stored)
        ends = step.past_length.astype(np.int64) + step.context_count
        for i in np.flatnonzero(ends > self.max_length):
            raise ProtocolError(
                f"tensor 'context_count' is {step.context_count[i]} for slot {step.slot[i]} after "
                f"{step.past_length[i]} rows, limit {self.max_length} in all"
            )
        if len(step.features) and step.features.shape[1] != self.config.feature_size:
            raise ProtocolError(
                f"tensor 'features' has {step.features.shape[1]} columns, expected {self.config.feature_size}: layers "
                f"{self.config.feature_layers} of {self.config.hidden_size}"
            )
        limit = self.config.vocabulary_size
        for name, ids, least in (("token_ids", step.token_ids, 0), ("anchor", step.anchor, NO_TOKEN)):
            for i in np.flatnonzero((ids < least) | (ids >= limit)):
                raise ProtocolError(f"tensor '{name}' is {ids[i]} in row {i}, limit {least} to {limit - 1}")
        check_sampling(step, limit)
        self.stored[step.slot] = ends

    def release(self, slot: Array) -> None:
        """Empty slots. Raises ProtocolError for one that does not exist."""
        check_known(slot, self.slots)
        self.stored[slot] = 0
