"""Drafters in the coordinator's own process: no call to another where the draft itself costs next to nothing."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np

from python_backend.assembly.drafters import build_drafter
from python_backend.engine import DrafterEngine, EngineError
from python_backend.protocol import Array, Description, DrafterResult, DrafterStep
from python_backend.settings import Settings

log = logging.getLogger(__name__)


class LocalDrafter:
    """Answers as the drafter's Triton model would: with its time, and every failure an EngineError."""

    def __init__(self, engine: DrafterEngine) -> None:
        self._engine = engine

    def describe(self) -> Description:
        return self._engine.describe()

    def step(self, step: DrafterStep) -> DrafterResult:
        start = time.perf_counter()
        try:
            result = self._engine.step(step)
        except Exception as error:
            log.exception("draft failed")
            raise EngineError(f"{type(error).__name__}: {error}") from error
        return replace(result, engine_ms=np.array([(time.perf_counter() - start) * 1e3], dtype=np.float32))

    def release(self, slot: Array) -> None:
        self._engine.release(slot)


def local_drafters(settings: Settings) -> dict[str, LocalDrafter]:
    """Those of the settings that run in the coordinator's process."""
    return {name: LocalDrafter(build_drafter(name, settings)) for name in settings.drafters_in("coordinator")}
