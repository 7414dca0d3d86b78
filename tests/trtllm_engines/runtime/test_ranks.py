"""Ranks that follow run the passes that rank 0 runs. MPI and the other GPUs are stood in for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from python_backend.engine import EngineError
from python_backend.protocol import Part
from tests.support.checkpoints import make_step
from trtllm_engines.runtime.ranks import END, follow, join_world

Build = Callable[..., Any]


class Recorded:
    """A world that keeps what rank 0 says, and says it again to another rank."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.said = size, []

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Get_rank(self) -> int:  # noqa: N802
        return 1

    def bcast(self, message: Any, root: int = 0) -> Any:
        if message is None:
            return self.said.pop(0)
        self.said.append(message)
        return message


def test_a_rank_that_follows_has_the_keys_and_values_of_rank_0(build: Build) -> None:
    leader, other, world = build(), build(), Recorded()
    leader.world = world
    leader.step(make_step(Part(3, 0, list(range(1, 50))), Part(1, 0, [7, 8, 9], sample=False)))
    leader.release(torch.tensor([1]).numpy())
    leader.step(make_step(Part(3, 49, [5, 6, 7], drafts=2), Part(0, 0, [4] * 20)))
    leader.step(make_step(Part(3, 50, [9])))
    leader.step(make_step(Part(3, 20, [8, 9])))  # into a sealed block: goes on in a copy
    world.bcast((END,))
    follow(world, other.passes)
    assert torch.equal(leader.passes.pool, other.passes.pool)
    assert not world.said


def test_one_rank_needs_no_world() -> None:
    assert join_world(1) is None


def test_another_number_of_processes_than_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    __import__("tensorrt_llm._utils")
    monkeypatch.setattr(sys.modules["tensorrt_llm._utils"], "mpi_comm", lambda: Recorded(1), raising=False)
    with pytest.raises(EngineError, match=r"cut into 4 ranks, MPI runs 1: start with `mpirun .* -n 3 python3"):
        join_world(4)
