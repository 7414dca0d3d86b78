"""What the coordinator asks of its engines, in process or across a BLS call."""

from __future__ import annotations

from typing import Protocol

from python_backend.protocol import (
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    TargetResult,
    TargetStep,
)


class EngineError(RuntimeError):
    """An engine call failed; the message is the engine's own."""


class EngineLostError(EngineError):
    """The engine's process died and was replaced: whatever its slots held is gone."""


class TargetEngine(Protocol):
    """Runs the target model over ragged rows, samples, and accepts drafts."""

    def describe(self) -> Description: ...

    def step(self, step: TargetStep) -> TargetResult: ...

    def release(self, slot: Array) -> None: ...


class DrafterEngine(Protocol):
    """Follows the committed context of each slot and proposes drafts."""

    def describe(self) -> Description: ...

    def step(self, step: DrafterStep) -> DrafterResult: ...

    def release(self, slot: Array) -> None: ...
