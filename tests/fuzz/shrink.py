"""The smallest case that still does harm, found by leaving out and sending again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.case import Case, Given


def shrink(case: Case, hurts: Callable[[Case], bool], tries: int = 80, seconds: float = 60.0) -> Case:
    """Take each step that keeps the harm, until none does or the bounds are reached. hurts: sends and looks."""
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in steps(case):
            if tries <= 0 or time.monotonic() > deadline:
                return case
            tries -= 1
            if hurts(candidate):
                case, smaller = candidate, True
                break
    return case


def steps(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest first."""
    if case.body is not None:
        yield from (replace(case, body=body) for body in cuts(case.body))
        return
    for i in range(len(case.inputs)):
        yield replace(case, inputs=case.inputs[:i] + case.inputs[i + 1 :])
    for name in case.parameters:
        yield replace(case, parameters={k: v for k, v in case.parameters.items() if k != name})
    if case.request_id:
        yield replace(case, request_id="")
    if case.leave is not None:
        yield replace(case, leave=None)
    for i, given in enumerate(case.inputs):
        for simpler in simpler_inputs(given):
            yield replace(case, inputs=(*case.inputs[:i], simpler, *case.inputs[i + 1 :]))
    for name, value in case.parameters.items():
        for part in simpler_values(value):
            yield replace(case, parameters=case.parameters | {name: part})


def simpler_inputs(given: Given) -> Iterator[Given]:
    """Fewer values, then simpler ones; the shape keeps its rank and follows where it had told the truth."""
    fits = given.shape[-1:] == (len(given.values),)
    for values in cuts(given.values):
        yield replace(given, values=values, shape=(*given.shape[:-1], len(values)) if fits else given.shape)
    if len(given.values) <= 8:
        for i, value in enumerate(given.values):
            for part in simpler_values(value):
                yield replace(given, values=(*given.values[:i], part, *given.values[i + 1 :]))


def simpler_values(value: Any) -> Iterator[Any]:
    if isinstance(value, str | bytes | list):
        yield from cuts(value)
    elif isinstance(value, dict):
        yield from ({k: v for k, v in value.items() if k != key} for key in value)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1:
        yield value // 2


def cuts(whole: Any) -> Iterator[Any]:
    """Parts of a sequence: its halves, quarters, … each left out, but never all of it."""
    size = len(whole) // 2
    while size:
        for start in range(0, len(whole), size):
            part = whole[:start] + whole[start + size :]
            if len(part) < len(whole) and len(part):
                yield part
        size = 0 if len(whole) > 64 and size <= len(whole) // 8 else size // 2
