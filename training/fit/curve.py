"""What a training run shows: a bar on a terminal, lines elsewhere, and its curve as a plot."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from training.fit.trainer import Progress as Run

LINE_S = 60.0


class TrainingReport:
    """Loss, acceptance, rate and time left."""

    def __init__(self, console: Console, steps: int, done: int) -> None:
        self.console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("training", total=steps, completed=done)
        self.printed = time.monotonic()

    def __enter__(self) -> TrainingReport:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def line(self, run: Run, entry: dict[str, float]) -> None:
        """Called with every log line of the trainer."""
        agree = " ".join(f"{entry[k]:.3f}" for k in entry if k.startswith("agree_"))
        text = (
            f"step {run.step:,}  depth {int(entry['depth'])}  loss {entry['loss']:.4f}  agreement {agree}  "
            f"expected drafts {entry['expected_drafts']:.3f}  {run.tokens / max(run.seconds, 1e-9):,.0f} tokens/s"
        )
        self.progress.update(self.task, completed=run.step, description=text)
        if not self.console.is_terminal and time.monotonic() - self.printed >= LINE_S:
            self.console.print(text, soft_wrap=True)
            self.printed = time.monotonic()


def plot_curve(history: list[dict[str, float]], path: Path) -> None:
    """Agreement with the target's first choice by draft position, over training time."""
    figure, axes = plt.subplots(figsize=(7, 4))
    positions = sorted({key for entry in history for key in entry if key.startswith("agree_")})
    for key in positions:
        points = [(entry["seconds"] / 60, entry[key]) for entry in history if key in entry]
        axes.plot(*zip(*points, strict=True), label=f"draft {key.removeprefix('agree_')}", linewidth=1)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("agreement, given that earlier drafts agree")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
