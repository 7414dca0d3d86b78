"""Features of blocks that were written last are there, and no others, whatever happens to the blocks."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from python_backend.engines.blocks import Copy
from trtllm_engines.runtime.kept_features import KeptFeatures


class KeptMachine(RuleBasedStateMachine):
    """Blocks written, rolled back, taken over, copied; what is said to be whole is what was written last."""

    blocks, room, size = 8, 4, 3

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptFeatures(self.blocks, self.room, self.size, 2, torch.float32, torch.device("cpu"))
        self.written: list[list[float]] = [[] for _ in range(self.blocks)]  # contents of valid rows
        self.number = 0.0

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Several blocks in one step, each from some row on."""
        names = data.draw(st.lists(st.integers(0, self.blocks - 1), min_size=1, max_size=self.room, unique=True))
        rows: list[tuple[int, int, float]] = []
        for b in names:
            first = data.draw(st.integers(0, min(len(self.written[b]), self.size - 1)))
            count = data.draw(st.integers(1, self.size - first))
            values = [self.number + i for i in range(count)]
            self.number += count
            self.written[b] = self.written[b][:first] + values
            rows += [(b, first + i, value) for i, value in enumerate(values)]
        block, offset, value = (np.array(column) for column in zip(*rows, strict=True))
        self.kept.write(block, offset, torch.from_numpy(value).float()[:, None].expand(-1, 2))

    @rule(block=st.integers(0, 7), offset=st.integers(0, 2))
    def forget(self, block: int, offset: int) -> None:
        self.kept.forget(np.array([block]), np.array([offset]))
        self.written[block] = self.written[block][:offset]

    @rule(a=st.integers(0, 7), b=st.integers(0, 7))
    def copy(self, a: int, b: int) -> None:
        self.kept.copy(Copy(a, b))
        self.written[b] = list(self.written[a])

    @rule(block=st.integers(0, 7))
    def read(self, block: int) -> None:
        if self.kept.whole(np.array([block])):
            assert self.kept.read(np.array([block]))[:, 1].tolist() == self.written[block]

    @invariant()
    def no_more_is_there_than_was_written(self) -> None:
        assert all(self.kept.filled <= [len(rows) for rows in self.written])
        assert sum(self.kept.filled > 0) <= self.room


TestKeptFeatures = KeptMachine.TestCase
TestKeptFeatures.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
