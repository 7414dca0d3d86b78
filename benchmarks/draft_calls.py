"""What a draft call of the served networks costs on this machine, session by session.

A call appends the rows that were committed since the last, and drafts. The tokens do not matter to the time. Sessions
take turns, call by call, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from build_scripts.tables import Grid, write_section
from python_backend.assembly.drafters import weights_folder
from python_backend.assembly.engines import share_cores
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.drafters.engine import NetworkDrafter
from python_backend.protocol import Context, DrafterStep
from python_backend.settings import ROOT, DrafterSettings, Settings

PAGE = ROOT / "docs" / "drafters.md"
DRAFTS = {"drafter_mtp": (1, 3, 7), "drafter_dfly": (3, 7)}  # served networks, and the drafts asked for
SESSIONS = {
    "OpenVINO, 8 bits": {"engine": "openvino"},
    "OpenVINO, float32": {"engine": "openvino", "eight_bit": False},
    "torch, float32": {"engine": "torch"},
}
COMMITTED = (1, 2, 3, 2)  # rows since the last call, in turn
Times = dict[str, list[float]]


def call(count: int, context: int, rows: int, depth: int, temperature: float, features: int, seed: int) -> DrafterStep:
    """Of `count` sequences that add so many rows each."""
    random = np.random.default_rng(seed)
    contexts = [
        Context(
            slot,
            context,
            random.integers(0, 9000, rows).tolist(),
            random.normal(size=(rows, features)).astype(np.float32),
            int(random.integers(0, 9000)),
        )
        for slot in range(count)
    ]
    hot = np.full(count, temperature, dtype=np.float32)
    return DrafterStep.of(contexts, depth, temperature=hot, seed=np.arange(count, dtype=np.uint64))


def measure(
    drafters: dict[str, NetworkDrafter], count: int, context: int, depth: int, temperature: float, repeats: int
) -> Times:
    """ms of each call, by session; the first calls warm up."""
    times: Times = {name: [] for name in drafters}
    for i in range(-2, repeats):
        for name, drafter in drafters.items():
            rows, width = COMMITTED[i % len(COMMITTED)], drafter.config.feature_size
            step = call(count, context, rows, depth, temperature, width, i + 2)
            start = time.perf_counter()
            drafter.step(step)
            if i >= 0:
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def cell(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} ({min(times):.1f})"


def table(results: dict[tuple[str, int, int, float], Times], context: int) -> Grid:
    rows = [
        [f"{name.removeprefix('drafter_')}, {count} x {depth}, {temperature:g}", *map(cell, times.values())]
        for (name, count, depth, temperature), times in results.items()
    ]
    title = f"One draft call, ms: median (lowest), {context} rows of context"
    return Grid(title, ["network, sequences x drafts, temperature", *SESSIONS], rows)


def main(
    context: Annotated[int, typer.Option(help="rows of context of every sequence")] = 256,
    sequences: Annotated[list[int] | None, typer.Option(help="of a call; by default 1 and 8")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="timed calls of each session and shape")] = 20,
    write: Annotated[bool, typer.Option("--write", help="put the table into docs/drafters.md")] = False,
) -> None:
    """Compare the sessions: under a minute on two idle cores."""
    share_cores()
    counts, checkpoint = sequences or [1, 8], resolve_checkpoint(Settings())
    results = {}
    for name, depths in track(DRAFTS.items(), "draft calls", console=Console(stderr=True), transient=True):
        folder, room = weights_folder(name, DrafterSettings(kind="network")), context + max(COMMITTED)
        drafters = {
            session: NetworkDrafter(name, folder, checkpoint, max(counts), room, **options)  # type: ignore[arg-type]
            for session, options in SESSIONS.items()
        }
        for drafter in drafters.values():
            drafter.step(call(max(counts), 0, context, 0, 0.0, drafter.config.feature_size, 0))
        for count, depth, temperature in itertools.product(counts, depths, (0.0, 1.0)):
            results[name, count, depth, temperature] = measure(drafters, count, context, depth, temperature, repeats)
    grid = table(results, context)
    Console(width=120).print(grid.rich())
    if write:
        write_section(PAGE, "draft calls", grid.markdown())


if __name__ == "__main__":
    typer.run(main)
