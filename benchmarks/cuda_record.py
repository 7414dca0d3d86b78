"""What `bench_cuda` measured: a JSON file, its tables, its plot, and its place in the documentation."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from pydantic import BaseModel, ConfigDict

from build_scripts.tables import Grid, write_section
from python_backend.settings import ROOT

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PAGE, PLOT = ROOT / "docs" / "cuda.md", ROOT / "docs" / "cuda.png"


class Section(BaseModel):
    """Base of what a record holds; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(Section):
    """ms over the repeats."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


class StepTime(Section):
    """One verify pass, sampling and acceptance included."""

    sequences: int
    rows: int  # of each sequence
    ms: Spread
    kernel_ms: float | None  # in which the device computes or copies; None where no profiler could say

    @property
    def outside(self) -> float | None:
        """Share of the step in which the device has nothing to do."""
        return None if self.kernel_ms is None else max(0.0, 1 - self.kernel_ms / self.ms.median)


class DraftTime(Section):
    """A draft call of the longest chain, two new rows of context a sequence."""

    drafter: str
    trained: bool
    depth: int
    sequences: int
    ms: Spread


class EngineTimes(Section):
    """What one data type of weights costs."""

    dtype: str
    weight_bytes: int  # that a step reads at least
    steps: tuple[StepTime, ...]
    decoding: dict[int, float]  # sequences -> tokens/s of all together
    drafts: tuple[DraftTime, ...]


class Record(Section):
    """One run on one GPU."""

    device: str
    torch: str
    cuda: str
    driver: str
    date: str
    context: int  # committed rows of every sequence in a step
    bytes_per_s: float  # of a large copy on the device, read and written
    engines: tuple[EngineTimes, ...]

    def bound(self, engine: EngineTimes, sequences: int) -> float:
        """Tokens/s of plain decoding if a step took no longer than reading the weights once."""
        return sequences * self.bytes_per_s / engine.weight_bytes


def summary(record: Record) -> str:
    return (
        f"{record.device}, driver {record.driver}, CUDA {record.cuda}, torch {record.torch}, {record.date}. A large "
        f"copy moves {record.bytes_per_s / 1e12:.2f} TB/s, read and written."
    )


def grids(record: Record) -> dict[str, Grid]:
    """The tables by the name of their section in the page."""
    return {
        "cuda steps": _steps(record),
        "cuda decoding": _decoding(record),
        "cuda drafts": _drafts(record),
    }


def _steps(record: Record) -> Grid:
    columns = [c for e in record.engines for c in (f"{e.dtype}, ms", f"{e.dtype}, outside kernels")]
    rows: dict[str, list[str]] = {}
    for engine in record.engines:
        for step in engine.steps:
            cells = [str(step.ms), "-" if step.outside is None else f"{step.outside:.0%}"]
            rows.setdefault(f"{step.sequences} x {step.rows}", []).extend(cells)
    title = f"One verify pass: median (lowest - highest), context {record.context}"
    return Grid(title, ["sequences x rows each", *columns], [[name, *cells] for name, cells in rows.items()])


def _decoding(record: Record) -> Grid:
    counts = list(record.engines[0].decoding)
    rows = []
    for engine in record.engines:
        rows.append([engine.dtype, *(f"{engine.decoding[s]:.0f}" for s in counts)])
        rows.append([f"{engine.dtype}, bandwidth bound", *(f"{record.bound(engine, s):.0f}" for s in counts)])
    return Grid("Plain decoding, tokens/s", ["", *(_sequences(s) for s in counts)], rows)


def _drafts(record: Record) -> Grid:
    counts = sorted({draft.sequences for engine in record.engines for draft in engine.drafts})
    rows: dict[str, list[str]] = {}
    for engine in record.engines:
        for draft in engine.drafts:
            weights = "" if draft.trained else ", untrained"
            rows.setdefault(f"{draft.drafter}, {draft.depth} drafts{weights}, beside {engine.dtype}", []).append(
                str(draft.ms)
            )
    columns = ["drafter in the target's process", *(_sequences(s) for s in counts)]
    return Grid("A draft call, ms: median (lowest - highest)", columns, [[n, *cells] for n, cells in rows.items()])


def _sequences(count: int) -> str:
    return f"{count} sequence{'s' * (count > 1)}"


def write(record: Record, page: Path = PAGE, picture: Path = PLOT) -> None:
    """Put the tables into the page and the plot beside it."""
    write_section(page, "cuda device", summary(record) + "\n")
    for name, grid in grids(record).items():
        write_section(page, name, grid.markdown())
    write_section(page, "cuda plot", f"![Steps and plain decoding]({picture.name})\n")
    plot(record, picture)


def plot(record: Record, file: Path) -> None:
    """Left: ms of a step over sequences. Right: tokens/s of plain decoding, with what the bandwidth allows."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    for i, engine in enumerate(record.engines):
        for rows, style in zip(sorted({s.rows for s in engine.steps}), ("-o", "--s", ":^"), strict=False):
            steps = [s for s in engine.steps if s.rows == rows]
            label = f"{engine.dtype}, {rows} row{'s' * (rows > 1)} each"
            left.plot([s.sequences for s in steps], [s.ms.median for s in steps], style, color=f"C{i}", label=label)
        counts = list(engine.decoding)
        right.plot(counts, list(engine.decoding.values()), "-o", color=f"C{i}", label=engine.dtype)
        bound = [record.bound(engine, s) for s in counts]
        right.plot(counts, bound, ":", color=f"C{i}", label=f"{engine.dtype}, bandwidth bound")
    left.set(title=f"A verify pass, context {record.context}", ylabel="ms")
    right.set(title="Plain decoding", ylabel="tokens per second")
    for axes in (left, right):
        ticks = sorted({s.sequences for e in record.engines for s in e.steps})
        axes.set(xscale="log", yscale="log", xlabel="sequences", xticks=ticks)
        axes.set_xticklabels([str(t) for t in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"SmolLM2-135M, PyTorch engine, {record.device}")
    figure.savefig(file, dpi=110)
    plt.close(figure)
