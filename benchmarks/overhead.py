"""How much of a decode step is spent outside the engines: coordinator, BLS, selection, streaming.

Starts a server of its own with a step log, keeps B streams busy, and compares the wall time from step to step with the
time that the engines report for themselves.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from build_scripts.server import TritonServer
from clients import transport, wire

PROMPTS = (
    "Tell me about the history of Rome.",
    "Write a Python class for a stack with push and pop.",
    "Tom has 3 apples and buys 4 more. Explain how many he has.",
    "Rewrite this with type hints:\n```python\ndef add(a, b):\n    return a + b\n```",
)


class Overhead(NamedTuple):
    """Medians over the steps of one batch size; ms."""

    batch: int
    steps: int
    wall: float  # from the start of a step to the start of the next
    engines: float  # inside the engines' own calls
    transport: float  # BLS: calls minus engines
    select: float
    coordinator: float  # what is left: scheduling, commit, detokenising

    @property
    def share(self) -> float:
        return 1 - self.engines / self.wall


def measure(steps: Sequence[dict[str, Any]], batch: int) -> Overhead:
    """Steps of exactly `batch` decoding sequences and no prompt rows, whose successor follows at once."""
    rows = []
    for step, following in pairwise(steps):
        if step["batch"] == following["batch"] == batch and not step["prompt_rows"]:
            wall = (following["started"] - step["started"]) * 1e3
            engines = step["draft_engine_ms"] + step["verify_engine_ms"]
            calls = step["draft_ms"] + step["verify_ms"]
            rows.append((wall, engines, calls - engines, step["select_ms"], wall - calls - step["select_ms"]))
    if not rows:
        raise ValueError(f"no step with {batch} decoding sequences in the log")
    return Overhead(batch, len(rows), *(statistics.median(column) for column in zip(*rows, strict=True)))


def load(url: str, streams: int, tokens: int) -> None:
    """Keep `streams` gRPC streams busy for `tokens` tokens each."""

    def ask(i: int) -> None:
        request = {
            "messages": wire.chat_messages(("user", PROMPTS[i % len(PROMPTS)])),
            "max_tokens": tokens,
            "min_tokens": tokens,
        }
        for _ in transport.stream_grpc(request, url):
            pass

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(ask, range(streams)))


def show(results: Sequence[Overhead], console: Console) -> None:
    table = Table(title="Where a decode step goes (median ms)")
    for heading in ("B", "steps", "step", "engines", "BLS", "selection", "coordinator", "outside engines"):
        table.add_column(heading, justify="right")
    for r in results:
        table.add_row(
            str(r.batch),
            str(r.steps),
            f"{r.wall:.2f}",
            f"{r.engines:.2f}",
            f"{r.transport:.2f}",
            f"{r.select:.2f}",
            f"{r.coordinator:.2f}",
            f"{r.share:.1%}",
        )
    console.print(table)


def main(
    batch: Annotated[list[int] | None, typer.Option(help="batch sizes to measure")] = None,
    tokens: Annotated[int, typer.Option(help="tokens of each stream")] = 96,
    policy: Annotated[str, typer.Option(help="budget policy of the server")] = "dcut",
) -> None:
    """Measure the time outside the engines at several batch sizes."""
    console = Console()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        environment = {"ANGELSPEC_COORDINATOR__STEP_LOG": str(log), "ANGELSPEC_BUDGET__POLICY": policy}
        with TritonServer(environment=environment) as server:
            for size in batch or [1, 16]:
                log.write_text("")
                with console.status(f"{size} streams"):
                    load(server.grpc_url, size, tokens)
                results.append(measure([json.loads(line) for line in log.read_text().splitlines()], size))
    show(results, console)


if __name__ == "__main__":
    typer.run(main)
