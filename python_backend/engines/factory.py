"""The target engine that the settings name."""

from __future__ import annotations

from python_backend.engines.base import TargetEngine
from python_backend.engines.checkpoint import resolve_checkpoint
from python_backend.settings import Settings


def build_target(settings: Settings) -> TargetEngine:
    """Load the target. Raises CheckpointError or ValueError naming what does not fit."""
    from python_backend.engines.torch_engine import TorchEngine  # torch is imported only where it serves

    return TorchEngine(resolve_checkpoint(settings), settings.target, settings.coordinator)
