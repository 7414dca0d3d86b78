"""Wrong settings in the words of who wrote them: where, which key, what is allowed, the nearest known key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


class SettingsError(ValueError):
    """The settings cannot be used; a line a fault."""


def explain(error: ValidationError, settings: type[BaseModel], file: Path, prefix: str) -> SettingsError:
    """prefix: of variables that override the file."""
    return SettingsError("\n".join(_line(fault, settings, file, prefix) for fault in error.errors(include_url=False)))


def _line(fault: Any, settings: type[BaseModel], file: Path, prefix: str) -> str:
    key = ".".join(map(str, fault["loc"]))
    where = _source(fault["loc"], file, prefix)
    if fault["type"] == "extra_forbidden":
        known = _keys(settings, fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        return f"{where}: unknown key '{key}'; " + (
            f"did you mean '{'.'.join([*map(str, fault['loc'][:-1]), near[0]])}'?"
            if near
            else f"there are {', '.join(known)}"
        )
    if fault["type"] == "value_error":  # our own words, which name keys and values
        return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return f"{where}: {key} is {fault['input']!r}: {message.removeprefix('input ')}"


def _source(keys: Sequence[str | int], file: Path, prefix: str) -> str:
    """The variable that sets a key, its section, or something below it; else the file."""
    variables = {name.upper(): name for name in os.environ if name.upper().startswith(prefix)}
    for end in range(len(keys), 0, -1):
        if found := variables.get(prefix + "__".join(map(str, keys[:end])).upper()):
            return found
    below = prefix + "__".join(map(str, keys)).upper()
    return ", ".join(
        [str(file), *(name for upper, name in sorted(variables.items()) if upper.startswith(f"{below}__"))]
    )


def _keys(model: Any, path: Sequence[str | int]) -> list[str]:
    """Those of a section."""
    steps = iter(path)
    for step in steps:
        annotation = model.model_fields[step].annotation
        named = [part for part in get_args(annotation) if _is_model(part)]  # dict[str, Section]
        model = named[0] if named else annotation
        if named:
            next(steps, None)  # the name
    return list(model.model_fields)


def _is_model(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseModel)
