"""The recorded options of the programs that build engines, and a check of command lines against them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trtllm_engines.pin import TENSORRT_LLM

RECORD = Path(__file__).parent / "contracts" / f"cli_{TENSORRT_LLM.replace('.', '_')}.json"


class Program(NamedTuple):
    """What one program takes: option -> None for any value, () for a switch, else the values it takes."""

    sources: tuple[str, ...]
    options: dict[str, tuple[str, ...] | None]


@cache
def record() -> dict[str, Program]:
    """All recorded programs by name."""
    programs = json.loads(RECORD.read_text())["programs"]
    return {
        name: Program(
            tuple(entry["sources"]),
            {option: values if values is None else tuple(values) for option, values in entry["options"].items()},
        )
        for name, entry in programs.items()
    }


def complaints(program: str, arguments: tuple[str, ...]) -> list[str]:
    """What the record has against a command line; empty = nothing. Arguments before the first option are free."""
    options = record()[program].options
    found = []
    first = next((i for i, argument in enumerate(arguments) if argument.startswith("--")), len(arguments))
    rest = list(arguments[first:])
    while rest:
        option = rest.pop(0)
        if option not in options:
            found.append(f"{program} has no {option}")
            while rest and not rest[0].startswith("--"):
                rest.pop(0)
            continue
        allowed = options[option]
        if allowed == ():
            continue
        if not rest or rest[0].startswith("--"):
            found.append(f"{program} {option} needs a value")
        elif (value := rest.pop(0)) and allowed is not None and value not in allowed:
            found.append(f"{program} {option} is {value}, it takes {', '.join(allowed)}")
    return found


def options_in_help(text: str) -> set[str]:
    """Every option that a program's --help mentions."""
    return set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text))
