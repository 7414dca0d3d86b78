"""What a server's log says: its reasons, and which models never ended."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

OURS = '"python_backend.'  # how our own lines begin, after Triton's mark of level, time and place
ERROR = re.compile(r"^E\d{4} ")
NOT_HEALTHY = "is not healthy"  # Triton's word for a model whose process died
LOAD_FAILURE = re.compile(r"failed to load '([^']+)' version \d+: \w+: (.+)")
MOVES = re.compile(r"successfully (loaded|unloaded) '([^']+)'")


def tail(log: Path, lines: int) -> str:
    return "\n".join(_lines(log)[-lines:])


def last_words(log: Path, skip: int = 0) -> str:
    """What our models said last, after so many lines; empty where they said nothing."""
    said = [line for line in _lines(log)[skip:] if OURS in line]
    return _words(said[-1]) if said else ""


def last_error(log: Path, skip: int = 0) -> str:
    """The last error that our models or Triton told of them, after so many lines; empty where there is none."""
    said = [line for line in _lines(log)[skip:] if ERROR.match(line) and (OURS in line or NOT_HEALTHY in line)]
    if not said:
        return ""
    return _words(said[-1]) if OURS in said[-1] else said[-1].split("] ", 1)[-1].strip('"')


def load_failure(log: Path) -> str:
    """Why the first model that failed to load did, in one line; empty where none did."""
    for line in _lines(log):
        if failure := LOAD_FAILURE.search(line):
            cause = failure[2].rstrip('"').split("\\n", 1)[0]
            return f"model '{failure[1]}' did not load: {cause}"
    return ""


def length(log: Path) -> int:
    """Lines so far."""
    return len(_lines(log))


def never_unloaded(log: Path) -> list[str]:
    """Models that were loaded more often than unloaded."""
    left: Counter[str] = Counter()
    for line in _lines(log):
        if move := MOVES.search(line):
            left[move[2]] += 1 if move[1] == "loaded" else -1
    return sorted(name for name, count in left.items() if count > 0)


def _words(line: str) -> str:
    """Without the module that said it, and without the rest of a traceback."""
    return line.split(OURS, 1)[1].rstrip('"').split(": ", 1)[-1].split("\\n", 1)[0]


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
