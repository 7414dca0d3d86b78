"""The token ids that each KV slot holds: what penalties and banned words look back on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.protocol import TargetStep
from python_backend.rows import row_owners


class TokenHistory:
    """[slots, max_length] int32; position t holds token t, valid up to the rows written last."""

    def __init__(self, slots: int, max_length: int) -> None:
        self.tokens: npt.NDArray[np.int32] = np.zeros((slots, max_length), dtype=np.int32)

    def write(self, step: TargetStep) -> None:
        """Store the rows of a step, drafts included; rejected ones are overwritten by the next step."""
        owner, offset = row_owners(step.row_count)
        self.tokens[step.slot[owner], step.past_length[owner] + offset] = step.token_ids
