"""The token ids that each KV slot holds: what penalties and banned words look back on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.protocol import TargetStep, row_starts


class TokenHistory:
    """[slots, max_length] int32; position t holds token t, valid up to the rows written last."""

    def __init__(self, slots: int, max_length: int) -> None:
        self.tokens: npt.NDArray[np.int32] = np.zeros((slots, max_length), dtype=np.int32)

    def write(self, step: TargetStep) -> None:
        """Store the rows of a step, drafts included; rejected ones are overwritten by the next step."""
        starts = row_starts(step.row_count)
        for i, slot in enumerate(step.slot):
            past = step.past_length[i]
            self.tokens[slot, past : past + step.row_count[i]] = step.token_ids[starts[i] : starts[i + 1]]
