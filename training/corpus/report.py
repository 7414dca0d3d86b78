"""How far a synthesis is: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from python_backend.settings import WORKLOADS

LINE_S = 60.0


class Report:
    """Counts response tokens. total: those wanted in all; 0 where nobody knows."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("starting", total=total or None)
        self.begun = self.printed = time.monotonic()
        self.tokens = self.rows = 0  # of this run
        self.stored = 0  # in shards, those of earlier runs included
        self.unstored = 0

    def __enter__(self) -> Report:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def step(self, tokens: int, rows: int) -> None:
        """One pass of the target: response tokens it gave, rows it ran."""
        self.tokens += tokens
        self.rows += rows
        self.unstored += tokens
        now = time.monotonic()
        self.progress.update(self.task, description=self.line(), completed=self.stored + self.unstored)
        if not self.console.is_terminal and now - self.printed >= LINE_S:
            self.console.print(self.line())
            self.printed = now

    def shard(self, name: str, counts: Counter[str]) -> None:
        """A shard is stored. counts: of the whole corpus so far."""
        self.stored, self.unstored = counts["response_tokens"], 0
        shares = ", ".join(f"{d} {counts[f'{d}_response_tokens']:,}" for d in WORKLOADS)
        self.console.print(f"{name}: {self.stored:,} response tokens ({shares})")

    def line(self) -> str:
        """Tokens, rate, rows and time left."""
        done, seconds = self.stored + self.unstored, time.monotonic() - self.begun
        rate = self.tokens / max(seconds, 1e-9)
        left = f", {(self.total - done) / rate / 3600:.1f} h left" if self.total and rate else ""
        return f"{done:,} response tokens, {rate:.0f}/s, {self.rows / max(seconds, 1e-9):.0f} rows/s{left}"
