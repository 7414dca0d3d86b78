"""What the coordinator asks of its engines, in process or across a BLS call."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from python_backend.protocol import (
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    PrefixHit,
    PrefixQuery,
    TargetResult,
    TargetStep,
)


class EngineError(RuntimeError):
    """An engine call failed; the message is the engine's own."""


class EngineLostError(EngineError):
    """The engine's process died and was replaced: whatever its slots held is gone."""


class TargetEngine(Protocol):
    """Runs the target model over ragged rows, samples, and accepts drafts.

    `open` is asked before a sequence's first step where the description has a `prefix_block`. Without it, a sequence
    starts from nothing.
    """

    def describe(self) -> Description: ...

    def open(self, opening: PrefixQuery) -> PrefixHit: ...

    def step(self, step: TargetStep) -> TargetResult: ...

    def release(self, slot: Array) -> None: ...


class DrafterEngine(Protocol):
    """Follows the committed context of each slot and proposes drafts."""

    def describe(self) -> Description: ...

    def step(self, step: DrafterStep) -> DrafterResult: ...

    def release(self, slot: Array) -> None: ...


def nothing_held(opening: PrefixQuery) -> PrefixHit:
    """The answer of an engine that shares no rows between sequences."""
    nothing = np.zeros(len(opening.slot), dtype=np.int32)
    return PrefixHit(held=nothing, feature_count=nothing, features=np.zeros((0, 0), dtype=np.float32))
