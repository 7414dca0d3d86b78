"""Start-up checks: the engines must fit together, and the settings must fit the engines."""

from __future__ import annotations

from collections.abc import Iterator

from python_backend.checks import feature_columns
from python_backend.protocol import Description
from python_backend.settings import Settings


class StartupError(RuntimeError):
    """The server must not come up; the message says what does not fit."""


def check(settings: Settings, target: Description, drafters: dict[str, Description]) -> None:
    """Raise StartupError with every mismatch."""
    problems = [*_target_problems(settings, target)]
    for name, drafter in drafters.items():
        problems += _drafter_problems(settings, target, name, drafter)
    problems += [
        f"{table}.{workload} names '{name}', which is not among the drafters {sorted(drafters)}"
        for table in ("routes", "thinking_routes")
        for workload, name in getattr(settings, table).items()
        if name not in drafters
    ]
    for name in settings.shared_drafters:
        if name not in drafters:
            problems.append(f"shared_drafters names '{name}', which is not among the drafters {sorted(drafters)}")
        elif drafters[name].feature_size or drafters[name].hosted:
            problems.append(
                f"shared_drafters names '{name}', which reads features: only a request's own drafter gets them"
            )
    if problems:
        raise StartupError("; ".join(problems))


def _target_problems(settings: Settings, target: Description) -> Iterator[str]:
    wanted = settings.coordinator
    if target.role != "target":
        yield f"model '{target.name}' is a {target.role}, not a target"
    if target.slots < wanted.max_sequences:
        yield f"the target has {target.slots} slots, coordinator.max_sequences is {wanted.max_sequences}"
    if target.max_length < wanted.max_length:
        yield f"the target holds {target.max_length} tokens a slot, coordinator.max_length is {wanted.max_length}"


def _drafter_problems(settings: Settings, target: Description, name: str, drafter: Description) -> Iterator[str]:
    wanted = settings.coordinator
    if drafter.role != "drafter":
        yield f"model '{name}' is a {drafter.role}, not a drafter"
    if drafter.vocabulary_size and drafter.vocabulary_size != target.vocabulary_size:
        yield f"'{name}' has a vocabulary of {drafter.vocabulary_size} tokens, the target {target.vocabulary_size}"
    if drafter.target_sha256 and drafter.target_sha256 != target.weights_sha256:
        yield (
            f"'{name}' was trained for the target {drafter.target_sha256[:12]}, "
            f"this one ({target.name}) is {target.weights_sha256[:12]}"
        )
    if missing := [layer for layer in drafter.feature_layers if layer not in target.feature_layers]:
        yield f"'{name}' reads layer {missing[0]}, the target captures {target.feature_layers}"
    elif drafter.feature_size != (given := len(feature_columns(target, drafter))):
        yield f"'{name}' needs features of size {drafter.feature_size}, the target gives {given}"
    if drafter.slots < wanted.max_sequences:
        yield f"'{name}' has {drafter.slots} slots, coordinator.max_sequences is {wanted.max_sequences}"
    if drafter.max_length < wanted.max_length:
        yield f"'{name}' holds {drafter.max_length} tokens a slot, coordinator.max_length is {wanted.max_length}"
