"""What a verify pass costs on each engine of this machine, over sequences x rows; the engines take turns.

Weights, context and rows are the same for all; the tokens do not matter to the time.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from python_backend.budget.profile import fill, verify_step
from python_backend.engines.base import TargetEngine
from python_backend.engines.factory import build_target
from python_backend.settings import CoordinatorSettings, Settings, TargetSettings

ENGINES = {
    "torch": TargetSettings(engine="torch"),
    "openvino exact": TargetSettings(engine="openvino"),
    "openvino exact invariant": TargetSettings(engine="openvino", invariant=True),
    "openvino int8-dynamic": TargetSettings(engine="openvino", weights="int8-dynamic"),
}
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 2), (16, 1), (16, 2), (16, 4), (32, 1))  # sequences, rows each


class Spread(NamedTuple):
    """ms over the repeats."""

    median: float
    low: float
    high: float


def measure(context: int, repeats: int, progress: Progress) -> dict[tuple[int, int], dict[str, Spread]]:
    """By shape and engine. Every engine is warmed up on a shape before it is timed."""
    slots = max(sequences for sequences, _ in SHAPES)
    limits = CoordinatorSettings(max_sequences=slots, max_length=context + 64)
    engines: dict[str, TargetEngine] = {}
    for name, target in progress.track(ENGINES.items(), description="loading engines"):
        engines[name] = build_target(Settings(target=target, coordinator=limits))
    vocabulary = next(iter(engines.values())).describe().vocabulary_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, size=max(context, slots * 16))
    for engine in progress.track(engines.values(), description="prefilling"):
        for slot in range(slots):
            fill(engine, slot, context, tokens)
    results = {}
    for sequences, rows in progress.track(SHAPES, description="measuring"):
        step = verify_step(sequences, sequences * (rows - 1), context, tokens)
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(repeats + 1):
            for name, engine in engines.items():
                start = time.perf_counter()
                engine.step(step)
                times[name].append((time.perf_counter() - start) * 1e3)
        results[sequences, rows] = {
            name: Spread(statistics.median(taken[1:]), min(taken[1:]), max(taken[1:])) for name, taken in times.items()
        }
    return results


def show(results: dict[tuple[int, int], dict[str, Spread]], context: int, console: Console) -> None:
    table = Table(title=f"One verify pass, ms: median (lowest - highest), context {context}")
    table.add_column("sequences x rows")
    for name in ENGINES:
        table.add_column(name, justify="right")
    for (sequences, rows), by_engine in results.items():
        cells = [f"{s.median:.1f} ({s.low:.0f}-{s.high:.0f})" for s in by_engine.values()]
        table.add_row(f"{sequences} x {rows}", *cells)
    console.print(table)


def main(
    context: Annotated[int, typer.Option(help="committed rows of every sequence")] = 256,
    repeats: Annotated[int, typer.Option(help="timed passes of each engine and shape")] = 7,
) -> None:
    """Compare the engines' verify passes."""
    console = Console(width=120)
    with Progress(console=console, transient=True) as progress:
        results = measure(context, repeats, progress)
    show(results, context, console)


if __name__ == "__main__":
    typer.run(main)
