"""Plain decoding, tokens per second, of our engines and of what one would otherwise run, on the same weights.

Each engine has a process of its own and they take turns, round by round; the memory's speed is measured in the same
rounds. No step can be shorter than one reading of the weights takes: that is the bound beside them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from rich.progress import Progress

from benchmarks.peers.environment import environment, requantised
from build_scripts.fetch_model import source_file
from build_scripts.tables import Grid
from python_backend.checkpoints import checkpoint, quantised
from python_backend.settings import ROOT, load

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SEQUENCES = (1, 4, 16, 32)
PROMPT = 16  # tokens; the context grows from there
OURS = "AngelSpec exact"
BOUND = "bandwidth bound"


class Worker(NamedTuple):
    """How to start an engine's process."""

    program: str  # below build_scripts.peers
    arguments: tuple[str, ...]  # after the program: model, threads, variant
    python: Path


class Rate(NamedTuple):
    """Tokens per second of all sequences together, over the rounds."""

    median: float
    low: float
    high: float


Rates = dict[str, dict[int, Rate]]  # by engine, then by sequences


class WorkerError(RuntimeError):
    """An engine's process ended instead of answering."""


def workers(threads: int, peers: bool) -> dict[str, Worker]:
    """Our engines, and the peers where they are wanted; installs and converts what these need."""
    here, count = Path(sys.executable), str(threads)
    folder = checkpoint.embedded_folder(load())
    found = {
        OURS: Worker("target", ("openvino", count), here),
        "AngelSpec int8-dynamic, invariant": Worker("target", ("openvino", count, "int8-dynamic"), here),
    }
    if peers:
        cache = load().cache_dir / "peers"
        python, model = environment(cache), source_file()
        found |= {
            "OpenVINO GenAI float32": Worker("genai", (str(model), count, "float32"), python),
            "OpenVINO GenAI defaults": Worker("genai", (str(model), count), python),
            "llama.cpp Q4_1": Worker("llama_cpp", (str(model), count), python),
            "llama.cpp Q4_0": Worker("llama_cpp", (str(requantised(model, cache)), count), python),
            "transformers float32": Worker("generate", (str(folder), count), here),
        }
    return found


def measure(wanted: dict[str, Worker], threads: int, rounds: int, steps: int, progress: Progress) -> Rates:
    """Rates of every engine, and the bound. The first round of an engine follows a warm-up that does not count."""
    taken: dict[str, dict[int, list[float]]] = {name: {b: [] for b in SEQUENCES} for name in (*wanted, BOUND)}
    size = weight_bytes(checkpoint.embedded_folder(load()))
    with ExitStack() as stack:
        starting = progress.track(wanted.items(), description="starting engines")
        asks = {name: stack.enter_context(started(worker)) for name, worker in starting}
        for ask in asks.values():
            ask(max(SEQUENCES), 2)
        for _ in progress.track(range(rounds), description="rounds of plain decoding"):
            seconds = read_seconds(size, threads)
            for sequences in SEQUENCES:
                taken[BOUND][sequences].append(sequences / seconds)
                for name, ask in asks.items():
                    taken[name][sequences].append(sequences / ask(sequences, steps) * 1e3)
    return {
        name: {b: Rate(statistics.median(r), min(r), max(r)) for b, r in by_count.items()}
        for name, by_count in taken.items()
    }


@contextmanager
def started(worker: Worker) -> Iterator[Callable[[int, int], float]]:
    """A running process; yields what asks it: (sequences, steps) -> ms a step. Raises WorkerError where it ended."""
    command = [str(worker.python), "-m", f"benchmarks.peers.{worker.program}", *worker.arguments]
    log = load().cache_dir / "logs" / f"peer_{worker.program}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        answers = process.stdout

        def answer() -> dict[str, float]:
            line = answers.readline()
            if not line:
                raise WorkerError(f"{' '.join(command)} ended: see {log}")
            parsed: dict[str, float] = json.loads(line)
            return parsed

        def ask(sequences: int, steps: int) -> float:
            print(json.dumps({"sequences": sequences, "prompt": PROMPT, "steps": steps}), file=process.stdin)
            return answer()["step_ms"]

        answer()  # its version: it is ready
        try:
            yield ask
        finally:
            process.stdin.close()
            process.kill()  # some engines take long to say good-bye


def weight_bytes(folder: Path) -> int:
    """What a step of `exact` reads at least: codes, scales and zero points of every matrix, the head included."""
    total = 0
    for weight in quantised.load(folder).values():
        parts = (weight.code, weight.scale, weight.zero) if isinstance(weight, quantised.Blocks) else (weight,)
        total += sum(part.nbytes for part in parts if part is not None)
    return total


def read_seconds(size: int, threads: int, repeats: int = 5) -> float:
    """The shortest time in which so many threads read `size` bytes of memory once."""
    parts = np.array_split(np.ones(size // 8, dtype=np.uint64), threads)
    best = np.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            list(pool.map(np.add.reduce, parts))
            best = min(best, time.perf_counter() - start)
    return float(best)


def table(rates: Rates) -> Grid:
    counts = [f"{s} sequence{'s' * (s > 1)}" for s in SEQUENCES]
    cells = {n: [f"{r.median:.1f} ({r.low:.0f}-{r.high:.0f})" for r in by.values()] for n, by in rates.items()}
    rows = [[name, *row] for name, row in cells.items()]
    return Grid("Plain decoding, tokens/s: median (lowest - highest)", ["engine", *counts], rows)


def plot(rates: Rates, file: Path) -> None:
    """Tokens per second over sequences, both logarithmic, with the spread."""
    figure, axes = plt.subplots(figsize=(8, 5), constrained_layout=True)
    for name, by_count in rates.items():
        counts, values = list(by_count), list(by_count.values())
        middle = [r.median for r in values]
        style = "k:" if name == BOUND else "-o" if name.startswith("AngelSpec") else "--s"
        (line,) = axes.plot(counts, middle, style, label=name, linewidth=2 if name == OURS else 1.3, markersize=4)
        axes.fill_between(counts, [r.low for r in values], [r.high for r in values], alpha=0.12, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="tokens per second", xticks=SEQUENCES)
    axes.set_xticklabels([str(s) for s in SEQUENCES])
    axes.minorticks_off()
    axes.set_yticks(ticks := [10, 20, 50, 100, 200, 500, 1000])
    axes.set_yticklabels([str(t) for t in ticks])
    axes.grid(alpha=0.3)
    axes.set_title(f"Plain decoding, SmolLM2-135M, {len(os.sched_getaffinity(0))} cores")
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=120)
    plt.close(figure)
