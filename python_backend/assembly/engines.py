"""The target engine that the settings name."""

from __future__ import annotations

import os
from importlib import import_module
from typing import cast

from python_backend.assembly.drafters import build_drafter, layers_read, weights_folder
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checks import feature_columns
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.settings import EngineName, Settings

# Where each engine's class is. Imported only where it serves, since each brings a large library along; and named, not
# imported, because TensorRT-LLM's is built on this package and this package stands without it.
ENGINES: dict[EngineName, str] = {
    "torch": "python_backend.engines.torch_engine:TorchEngine",
    "openvino": "python_backend.engines.openvino_engine:OpenVinoEngine",
    "tensorrt_llm": "trtllm_engines.runtime.engine:TensorRtTarget",
    "stock": "python_backend.triton_bridge.stock:StockTarget",
}
DRAFTER_ENGINES = "trtllm_engines.runtime.drafter:EngineDrafter"


def build_target(settings: Settings) -> TargetEngine:
    """Load the target. Raises CheckpointError, EngineError or ValueError naming what does not fit."""
    share_cores()
    folder = resolve_checkpoint(settings)
    module, name = ENGINES[settings.target.engine].split(":")
    engine = getattr(import_module(module), name)
    target = settings.target
    if not target.feature_layers:
        target = target.model_copy(update={"feature_layers": layers_read(settings)})
    return cast(TargetEngine, engine(folder, target, settings.coordinator))


def build_host(settings: Settings) -> tuple[TargetEngine, dict[str, DrafterEngine]]:
    """The target, and the drafters that live in its process. Raises what `build_target` and `build_drafter` raise."""
    target = build_target(settings)
    names = settings.drafters_in("target")
    if not names:
        return target, {}
    from python_backend.assembly.hosted import DeviceTarget, FeatureStore, HostedDrafter, HostingTarget  # torch

    store = FeatureStore(settings.coordinator.max_sequences)
    drafters: dict[str, DrafterEngine] = {}
    for name in names:
        drafter = build_engines(name, settings) if has_engines(name, settings) else build_drafter(name, settings)
        drafters[name] = HostedDrafter(drafter, store, feature_columns(target.describe(), drafter.describe()))
    return HostingTarget(cast(DeviceTarget, target), store), drafters


def has_engines(name: str, settings: Settings) -> bool:
    """Whether a drafter in the target's process is served by built engines instead of its network."""
    drafter = settings.drafters[name]
    if drafter.engine != "auto":
        return drafter.engine == "tensorrt"
    return any(weights_folder(name, drafter).glob("*.engine"))


def build_engines(name: str, settings: Settings) -> DrafterEngine:
    """Raises EngineError or CheckpointError naming what does not fit."""
    drafter, limits = settings.drafters[name], settings.coordinator
    module, engine = DRAFTER_ENGINES.split(":")
    folder, checkpoint = weights_folder(name, drafter), resolve_checkpoint(settings)
    built = getattr(import_module(module), engine)(
        name, folder, checkpoint, limits.max_sequences, limits.max_length, drafter.device
    )
    return cast(DrafterEngine, built)


def share_cores() -> None:
    """Make torch's threads sleep while they wait for each other. Call before the first import of torch.

    By default they spin, and a step waits a scheduler slice at each of its hundreds of joins as soon as anything else,
    such as a client or the coordinator, runs on the same cores. OMP_WAIT_POLICY=active asks for spinning.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
