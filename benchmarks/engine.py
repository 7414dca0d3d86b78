"""What the engines cost on this machine: verify passes over sequences x rows, and plain decoding beside other engines.

Weights, context and rows are the same for all; the tokens do not matter to the time. The engines take turns.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks import decoding as bench_decoding
from build_scripts.tables import Grid, write_section
from python_backend.assembly.engines import build_target
from python_backend.coordinator.profile import fill, verify_step
from python_backend.engine import TargetEngine
from python_backend.settings import ROOT, CoordinatorSettings, Settings, TargetSettings

PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.png"
ENGINES = {
    "PyTorch float32": TargetSettings(engine="torch"),
    "OpenVINO `exact`": TargetSettings(engine="openvino", quantization="exact"),
    "`exact`, `invariant`": TargetSettings(engine="openvino", quantization="exact", invariant=True),
    "`int8-dynamic`, `invariant`": TargetSettings(engine="openvino", quantization="int8-dynamic", invariant=True),
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
    for sequences, rows in progress.track(SHAPES, description="verify passes"):
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


def table(results: dict[tuple[int, int], dict[str, Spread]], context: int) -> Grid:
    rows = [
        [f"{sequences} x {each}", *(f"{s.median:.1f} ({s.low:.0f}-{s.high:.0f})" for s in by_engine.values())]
        for (sequences, each), by_engine in results.items()
    ]
    title = f"One verify pass, ms: median (lowest - highest), context {context}"
    return Grid(title, ["sequences x rows each", *ENGINES], rows)


def main(
    context: Annotated[int, typer.Option(help="committed rows of every sequence in a verify pass")] = 256,
    repeats: Annotated[int, typer.Option(help="timed verify passes of each engine and shape; 0 = none at all")] = 5,
    rounds: Annotated[int, typer.Option(help="rounds of plain decoding; 0 = none at all")] = 3,
    steps: Annotated[int, typer.Option(help="decode steps of each engine, size and round")] = 16,
    peers: Annotated[bool, typer.Option(help="also OpenVINO GenAI, llama.cpp and transformers")] = True,
    write: Annotated[bool, typer.Option(help="write the tables and the plot into docs/")] = False,
) -> None:
    """Compare the engines: under six minutes on two idle cores, after the first time."""
    console = Console(width=120)
    threads = len(os.sched_getaffinity(0))
    sections: dict[str, Grid] = {}
    with Progress(console=console, transient=True) as progress:
        if rounds:
            wanted = bench_decoding.workers(threads, peers)
            rates = bench_decoding.measure(wanted, threads, rounds, steps, progress)
            sections["plain decoding"] = bench_decoding.table(rates)
        if repeats:
            sections["verify passes"] = table(measure(context, repeats, progress), context)
    for grid in sections.values():
        console.print(grid.rich())
    if write:
        for name, grid in sections.items():
            write_section(PAGE, name, grid.markdown())
        if rounds:
            bench_decoding.plot(rates, PLOT)


if __name__ == "__main__":
    typer.run(main)
