"""perf_analyzer's profile export file, read into requests with their times and tokens.

Version 2.60 writes a tensor of one element as a scalar, a longer one as a list, and an output that a response does
not carry as "". One response may carry several tokens, so tokens are counted from `output_ids`, never from responses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.wire import Speculation

COMPLETE = ("stop", "length")


class ExportError(ValueError):
    """The file is not an export of a run against `angelspec`."""


@dataclass(frozen=True)
class Request:
    """One request as the load generator saw it. Times in ns; the tuples have an entry a response."""

    start_ns: int
    response_ns: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: str
    speculation: Speculation

    @property
    def complete(self) -> bool:
        return self.finish_reason in COMPLETE

    @property
    def output_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def first(self) -> int:
        """Index of the first response that carries a token. Raises StopIteration where none does."""
        return next(i for i, count in enumerate(self.tokens) if count)

    @property
    def time_to_first_token_s(self) -> float:
        return (self.response_ns[self.first] - self.start_ns) / 1e9

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean time of a token after the first response; None where all came in one response."""
        later = self.output_tokens - self.tokens[self.first]
        return (self.response_ns[-1] - self.response_ns[self.first]) / 1e9 / later if later else None

    @property
    def tokens_per_s(self) -> float:
        """What the user gets: all tokens over the whole wait, from sending to the last response."""
        return self.output_tokens / ((self.response_ns[-1] - self.start_ns) / 1e9)


def read(path: Path) -> list[Request]:
    """The requests of all experiments in the file. Raises ExportError for a file of another kind."""
    try:
        experiments = json.loads(path.read_text())["experiments"]
        return [read_request(request) for experiment in experiments for request in experiment["requests"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{path} is not a profile export of a model with 'output_ids': {error!r}") from error


def read_request(raw: dict[str, Any]) -> Request:
    """One entry of `requests`. A request without a complete last response has an empty finish reason."""
    outputs = raw["response_outputs"]
    last = outputs[-1] if outputs else {}
    summary = last.get("speculation", "")
    return Request(
        start_ns=raw["timestamp"],
        response_ns=tuple(raw["response_timestamps"]),
        tokens=tuple(count(output["output_ids"]) for output in outputs),
        finish_reason=last.get("finish_reason", ""),
        speculation=Speculation.model_validate_json(summary) if summary else Speculation(),
    )


def count(value: Any) -> int:
    """How many elements a tensor in the export has. Raises ValueError for what is none."""
    if value == "":
        return 0
    if isinstance(value, list):
        return sum(count(element) for element in value)
    if isinstance(value, int):
        return 1
    raise ValueError(f"output_ids is {value!r}, expected a number, a list of numbers or nothing")
