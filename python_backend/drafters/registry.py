"""All drafters by the name that settings use."""

from __future__ import annotations

from collections.abc import Callable

from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engines.base import DrafterEngine
from python_backend.settings import DrafterSettings, Settings

Builder = Callable[[str, DrafterSettings, Settings], DrafterEngine]


def _prompt_lookup(name: str, drafter: DrafterSettings, settings: Settings) -> DrafterEngine:
    limits = settings.coordinator
    return PromptLookup(
        name, limits.max_sequences, limits.max_length, limits.depth, drafter.min_ngram, drafter.max_ngram
    )


BUILDERS: dict[str, Builder] = {"prompt_lookup": _prompt_lookup}


def build_drafter(name: str, settings: Settings) -> DrafterEngine:
    """The drafter that the Triton model `name` serves. Raises ValueError naming what is unknown."""
    drafter = settings.drafters.get(name)
    if drafter is None:
        raise ValueError(f"settings.drafters has no '{name}'; it has {sorted(settings.drafters)}")
    if drafter.kind not in BUILDERS:
        raise ValueError(f"drafters.{name}.kind is '{drafter.kind}': expected one of {sorted(BUILDERS)}")
    return BUILDERS[drafter.kind](name, drafter, settings)
