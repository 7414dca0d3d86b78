"""Drafters that live in the target's process: features go from one to the other and never leave the device.

On the wire a feature row needs no handle of its own: the slot and the position, which every draft call names anyway,
say which row it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from python_backend.engine import DrafterEngine
from python_backend.engines.torch_attention import on_device
from python_backend.protocol import (
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    PrefixHit,
    PrefixQuery,
    ProtocolError,
    TargetResult,
    TargetStep,
)

MANY = 16  # pieces of a slot that are joined; each keeps its whole pass in memory


class DeviceTarget(Protocol):
    """A target that can leave its features where they are."""

    def describe(self) -> Description: ...

    def open_on_device(self, opening: PrefixQuery) -> tuple[PrefixHit, Tensor | None]:
        """What is held; features [C, F] of the rows that `feature_count` counts, apart from the answer."""
        ...

    def step_on_device(self, step: TargetStep) -> tuple[TargetResult, Tensor | None]:
        """A step; features [C, F] of the rows that `feature_count` counts, apart from the result."""
        ...

    def release(self, slot: Array) -> None: ...


class FeatureStore:
    """Per slot, the features of committed rows that its drafter has not read yet.

    They are kept as the passes left them, piece by piece: joining them at each pass would cost the device a kernel a
    slot.
    """

    def __init__(self, slots: int) -> None:
        self._pieces: list[list[Tensor]] = [[] for _ in range(slots)]  # [n, F] each, neighbours
        self._begin: list[int] = [0] * slots  # position of the first row

    def put(self, slot: Array, past: Array, count: Array, features: Tensor) -> None:
        """Rows past:past + count of each slot; whatever was there from `past` on was rolled back."""
        for s, begin, rows in zip(slot.tolist(), past.tolist(), features.split(count.tolist()), strict=True):
            if len(rows) == 0:
                continue
            kept = begin - self._begin[s]
            if 0 < kept <= self._held(s):
                pieces = [*_part(self._pieces[s], 0, kept), rows]
                self._pieces[s] = pieces if len(pieces) < MANY else [torch.cat(pieces)]
            else:
                self._pieces[s], self._begin[s] = [rows], begin

    def take(self, slot: int, past: int, count: int) -> list[Tensor]:
        """Pieces of [count, F]; rows before them are forgotten. Raises ProtocolError where they are not there."""
        begin, held = self._begin[slot], self._held(slot)
        if not self._pieces[slot] or past < begin or past + count > begin + held:
            raise ProtocolError(
                f"tensor 'context_count' asks for the features of rows {past} to {past + count - 1} of slot {slot}, "
                f"the target holds those of {held} rows from {begin} on"
            )
        self._pieces[slot], self._begin[slot] = _part(self._pieces[slot], past - begin, held), past
        return _part(self._pieces[slot], 0, count)

    def release(self, slot: Array) -> None:
        for s in slot.tolist():
            self._pieces[s] = []

    def _held(self, slot: int) -> int:
        return sum(map(len, self._pieces[slot]))


def _part(pieces: list[Tensor], first: int, last: int) -> list[Tensor]:
    """Rows [first, last) of neighbouring pieces."""
    part = []
    for piece in pieces:
        if first <= len(piece) and last >= 0:  # also nothing, in its shape
            part.append(piece[max(first, 0) : last])
        first, last = first - len(piece), last - len(piece)
    return part


class HostingTarget:
    """A `TargetEngine` whose features go to the drafters in its process instead of onto the wire."""

    def __init__(self, engine: DeviceTarget, store: FeatureStore) -> None:
        self._engine, self._store = engine, store
        self.describe = engine.describe

    def open(self, opening: PrefixQuery) -> PrefixHit:
        opened, features = self._engine.open_on_device(opening)
        nothing = np.zeros_like(opened.held)
        if features is not None:
            self._store.put(opening.slot, nothing, opened.feature_count, features)
        return replace(opened, feature_count=nothing)

    def step(self, step: TargetStep) -> TargetResult:
        result, features = self._engine.step_on_device(step)
        if features is not None:
            self._store.put(step.slot, step.past_length, result.feature_count, features)
        nothing = np.zeros_like(result.feature_count)
        return replace(result, feature_count=nothing, features=np.zeros((0, 0), dtype=np.float32))

    def release(self, slot: Array) -> None:
        self._engine.release(slot)
        self._store.release(slot)


class HostedDrafter:
    """A `DrafterEngine` that finds the features of its context in the store."""

    def __init__(self, engine: DrafterEngine, store: FeatureStore, columns: Array) -> None:
        """columns: of the target's features, those that it reads."""
        self._engine, self._store, self._columns = engine, store, columns
        self.release = engine.release

    def describe(self) -> Description:
        """It needs no features by wire."""
        return replace(self._engine.describe(), hosted=True, feature_layers=(), feature_size=0)

    def step(self, step: DrafterStep) -> DrafterResult:
        return self._engine.step(replace(step, features=self._features(step)))

    def _features(self, step: DrafterStep) -> Any:
        """[C, F'] on the device, in the place of the array that comes by wire."""
        rows = zip(step.slot.tolist(), step.past_length.tolist(), step.context_count.tolist(), strict=True)
        taken = torch.cat([piece for row in rows for piece in self._store.take(*row)])
        return taken[:, on_device(self._columns, str(taken.device))]
