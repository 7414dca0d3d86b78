"""The target engine that the settings name."""

from __future__ import annotations

import os

from python_backend.engines.base import TargetEngine
from python_backend.engines.checkpoint import resolve_checkpoint
from python_backend.settings import Settings


def build_target(settings: Settings) -> TargetEngine:
    """Load the target. Raises CheckpointError or ValueError naming what does not fit."""
    share_cores()
    folder = resolve_checkpoint(settings)
    if settings.target.engine == "openvino":  # each engine's library is imported only where it serves
        from python_backend.engines.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(folder, settings.target, settings.coordinator)
    from python_backend.engines.torch_engine import TorchEngine

    return TorchEngine(folder, settings.target, settings.coordinator)


def share_cores() -> None:
    """Make torch's threads sleep while they wait for each other. Call before the first import of torch.

    By default they spin, and a step waits a scheduler slice at each of its hundreds of joins as soon as anything else,
    such as a client or the coordinator, runs on the same cores. OMP_WAIT_POLICY=active asks for spinning.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
