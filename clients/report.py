"""From the export files of a load test to numbers, a table and a plot: `python -m clients.report FOLDER`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from clients import export, options, verdict, wire
from clients.export import Request
from clients.options import trouble_reported
from clients.wire import Speculation

MARKS = "os^D"  # of the policies in a plot, where colours cannot be told apart
PLAIN, SPEC = "plain", "spec"  # policies: without drafts, and as the server is set up
RUNS_FILE, SUMMARY_FILE, PLOT_FILE = "runs.json", "summary.json", "load_test.png"


class Run(BaseModel):
    """One call of perf_analyzer."""

    policy: str
    concurrency: int
    round: int
    requested: int  # requests it was told to send
    export_file: str  # in the folder of the load test; absent where the run failed
    error: str = ""


class LoadTest(BaseModel):
    """What the load test was, kept beside its export files."""

    title: str
    runs: list[Run]


@dataclass(frozen=True)
class Point:
    """One policy at one concurrency, over all its rounds."""

    policy: str
    concurrency: int
    requested: int
    failed: int  # requested, but not answered completely
    output_tokens: int
    tokens_per_s: float  # of all users together
    first_token_p50_ms: float
    first_token_p95_ms: float
    per_token_p50_ms: float
    per_token_p95_ms: float
    user_tokens_per_s: float  # mean over requests
    speculation: Speculation  # of all requests

    @property
    def mean_acceptance_length(self) -> float:
        return self.speculation.mean_acceptance_length


def points_of(test: LoadTest, folder: Path) -> list[Point]:
    """The runs of each policy and concurrency taken together, in the order they were first run."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in test.runs:
        groups.setdefault((run.policy, run.concurrency), []).append(run)
    return [point(runs, [read_run(run, folder) for run in runs]) for runs in groups.values()]


def read_run(run: Run, folder: Path) -> list[Request]:
    return [] if run.error else [request for request in export.read(folder / run.export_file) if request.complete]


def point(runs: Sequence[Run], requests_of: Sequence[Sequence[Request]]) -> Point:
    """The numbers of runs of one policy and concurrency, from the complete requests of each."""
    requests = [request for run in requests_of for request in run if request.output_tokens]
    requested = sum(run.requested for run in runs)
    output_tokens = sum(request.output_tokens for request in requests)
    seconds = sum(duration_s(run) for run in requests_of)
    first = [1000 * request.time_to_first_token_s for request in requests]
    per_token = [1000 * s for request in requests if (s := request.time_per_output_token_s) is not None]
    return Point(
        policy=runs[0].policy,
        concurrency=runs[0].concurrency,
        requested=requested,
        failed=requested - sum(len(run) for run in requests_of),
        output_tokens=output_tokens,
        tokens_per_s=output_tokens / seconds if seconds else 0.0,
        first_token_p50_ms=percentile(first, 50),
        first_token_p95_ms=percentile(first, 95),
        per_token_p50_ms=percentile(per_token, 50),
        per_token_p95_ms=percentile(per_token, 95),
        user_tokens_per_s=float(np.mean([request.tokens_per_s for request in requests])) if requests else 0.0,
        speculation=wire.total(request.speculation for request in requests),
    )


def verdicts(points: Sequence[Point]) -> list[str]:
    """Whether speculation pays, a sentence a concurrency: measured where plain decoding ran too, else predicted."""
    said = []
    for users in sorted({p.concurrency for p in points}):
        rate = {p.policy: p.tokens_per_s for p in points if p.concurrency == users and p.output_tokens}
        if {PLAIN, SPEC} <= rate.keys():
            said.append(verdict.measured(users, rate[PLAIN], rate[SPEC]))
    if said:
        return said
    sentences = {p.concurrency: verdict.predicted(p.speculation) for p in points if p.policy == SPEC}
    return [f"{verdict.users(count)}: {sentence}" for count, sentence in sentences.items() if sentence]


def duration_s(requests: Sequence[Request]) -> float:
    """From the first request sent to the last response received."""
    if not requests:
        return 0.0
    start = min(request.start_ns for request in requests)
    return (max(request.response_ns[-1] for request in requests) - start) / 1e9


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between neighbours; 0 where nothing was measured."""
    return float(np.percentile(values, percent)) if values else 0.0


def table_of(title: str, points: Sequence[Point]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for heading in (
        "users",
        "failed",
        "output\ntokens/s",
        "tokens/s\nper user",
        "first token\np50/p95 ms",
        "per token\np50/p95 ms",
        "acceptance\nlength",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for p in points:
        failed = f"{p.failed}/{p.requested}"
        measured = (
            f"{p.tokens_per_s:.1f}",
            f"{p.user_tokens_per_s:.1f}",
            f"{p.first_token_p50_ms:.0f}/{p.first_token_p95_ms:.0f}",
            f"{p.per_token_p50_ms:.1f}/{p.per_token_p95_ms:.1f}",
            f"{p.mean_acceptance_length:.2f}",
        )
        table.add_row(
            p.policy,
            str(p.concurrency),
            f"[red]{failed}[/]" if p.failed else failed,
            *(measured if p.output_tokens else ["-"] * len(measured)),
        )
    return table


def summary_of(point: Point) -> dict[str, Any]:
    """As it is kept in a file."""
    speculation = point.speculation
    numbers = {k: v for k, v in dataclasses.asdict(point).items() if k != "speculation"}
    return numbers | {"mean_acceptance_length": speculation.mean_acceptance_length, "gain": speculation.gain}


def plot(title: str, points: Sequence[Point], path: Path) -> None:
    """Six small panels, a colour a policy; PNG."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    figure.suptitle(title)
    panels = (
        ("output tokens/s", "tokens_per_s", None),
        ("tokens/s per user", "user_tokens_per_s", None),
        ("time to first token, ms", "first_token_p50_ms", "first_token_p95_ms"),
        ("time per output token, ms", "per_token_p50_ms", "per_token_p95_ms"),
        ("mean acceptance length", "mean_acceptance_length", None),
    )
    policies = list(dict.fromkeys(p.policy for p in points))
    for number, policy in enumerate(policies):
        own = sorted((p for p in points if p.policy == policy and p.output_tokens), key=lambda p: p.concurrency)
        users = [p.concurrency for p in own]
        mark, colour = MARKS[number % len(MARKS)], f"C{number}"
        for axis, (heading, name, high) in zip(axes.flat, panels, strict=False):
            axis.set_title(heading)
            label = f"{policy}, half are below (p50)" if high else policy
            axis.plot(users, [getattr(p, name) for p in own], f"{mark}-", color=colour, label=label)
            if high:
                values, label = [getattr(p, high) for p in own], f"{policy}, 95 % are below (p95)"
                axis.plot(users, values, f"{mark}:", color=colour, markerfacecolor="white", label=label)
        last = axes.flat[-1]
        at = [(p.user_tokens_per_s, p.tokens_per_s) for p in own]
        last.plot([x for x, _ in at], [y for _, y in at], f"{mark}-", color=colour, label=policy)
        side = -1 if number % 2 == 0 else 1  # each policy's labels on its own side of the line
        for p, xy in zip(own, at, strict=True):
            place = {"xytext": (9 * side, 7 * side), "textcoords": "offset points", "ha": "center", "va": "center"}
            last.annotate(str(p.concurrency), xy, color=colour, fontsize=8, **place)
    for axis in axes.flat[:-1]:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({p.concurrency for p in points}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_xlabel("concurrent users")
    axes.flat[-1].set(
        title="all users against one (labels: users)", xlabel="tokens/s per user", ylabel="output tokens/s"
    )
    axes.flat[-1].set_xlim(0, 1.12 * axes.flat[-1].get_xlim()[1])
    for axis in axes.flat:
        axis.set_ylim(0, 1.12 * axis.get_ylim()[1])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def report(console: Console, folder: Path) -> list[Point]:
    """Print the table of a load test's folder, write the plot and the summary into it."""
    if not (folder / RUNS_FILE).is_file():
        raise ValueError(f"{folder} is no folder of a load test: it has no {RUNS_FILE}")
    test = LoadTest.model_validate_json((folder / RUNS_FILE).read_text())
    points = points_of(test, folder)
    console.print(table_of(test.title, points))
    for sentence in verdicts(points):
        console.print(sentence, highlight=False)
    for run in test.runs:
        if run.error:
            console.print(f"[red]failed:[/] {run.policy}, {run.concurrency} users: {run.error}", highlight=False)
    (folder / SUMMARY_FILE).write_text(json.dumps([summary_of(p) for p in points], indent=2) + "\n")
    if any(p.output_tokens for p in points):
        plot(test.title, points, folder / PLOT_FILE)
        console.print(f"[dim]plot and numbers: {folder / PLOT_FILE}, {folder / SUMMARY_FILE}[/]", highlight=False)
    return points


def main(folder: Annotated[Path, typer.Argument(help="A folder that `clients.load_test` wrote.")]) -> None:
    """Show a load test again from its export files."""
    with trouble_reported():
        report(Console(), folder)


if __name__ == "__main__":
    options.run(main)
