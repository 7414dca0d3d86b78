"""All drafters by the kind that settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engine import DrafterEngine, EngineError
from python_backend.protocol import Array, Description, DrafterResult, DrafterStep
from python_backend.settings import NETWORK, ROOT, DrafterSettings, Settings

Builder = Callable[[str, DrafterSettings, Settings], DrafterEngine]


def _prompt_lookup(name: str, drafter: DrafterSettings, settings: Settings) -> DrafterEngine:
    limits = settings.coordinator
    return PromptLookup(
        name, limits.max_sequences, limits.max_length, limits.depth, drafter.min_ngram, drafter.max_ngram
    )


def _network(name: str, drafter: DrafterSettings, settings: Settings) -> DrafterEngine:
    from python_backend.drafters.engine import NetworkDrafter  # torch only where it serves

    limits = settings.coordinator
    return NetworkDrafter(
        name,
        weights_folder(name, drafter),
        resolve_checkpoint(settings),
        limits.max_sequences,
        limits.max_length,
        drafter.device,
        drafter.eight_bit,
        drafter.least_confidence,
        drafter.engine,
    )


BUILDERS: dict[str, Builder] = {"prompt_lookup": _prompt_lookup, NETWORK: _network}


class UnusedDrafter:
    """A model of the repository that the settings do not name. It loads, because a tritonserver that is started by
    hand loads every model and ends where one fails, and refuses whatever it is asked."""

    def __init__(self, name: str, known: list[str]) -> None:
        self._message = f"settings.drafters has no '{name}'; it has {known}"

    def describe(self) -> Description:
        raise EngineError(self._message)

    def step(self, step: DrafterStep) -> DrafterResult:  # noqa: ARG002 (part of an interface)
        raise EngineError(self._message)

    def release(self, slot: Array) -> None:  # noqa: ARG002 (part of an interface)
        raise EngineError(self._message)


def build_drafter(name: str, settings: Settings) -> DrafterEngine:
    """The drafter that the Triton model `name` serves. Raises ValueError naming a kind that is unknown."""
    drafter = settings.drafters.get(name)
    if drafter is None:
        return UnusedDrafter(name, sorted(settings.drafters))
    if drafter.kind not in BUILDERS:
        raise ValueError(f"drafters.{name}.kind is '{drafter.kind}': expected one of {sorted(BUILDERS)}")
    return BUILDERS[drafter.kind](name, drafter, settings)


def weights_folder(name: str, drafter: DrafterSettings) -> Path:
    """Where a network's weights are: beside its Triton model, unless the settings say otherwise."""
    return drafter.folder or ROOT / "model_repository" / name / "1"


def layers_read(settings: Settings) -> tuple[int, ...]:
    """The layers that the target must capture for its drafters, ascending."""
    configs = [
        DrafterConfig.read(weights_folder(name, drafter))
        for name, drafter in settings.drafters.items()
        if drafter.kind == NETWORK
    ]
    return tuple(sorted({layer for config in configs for layer in config.feature_layers}))
