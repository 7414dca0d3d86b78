"""What `make load-test` runs: perf_analyzer over several concurrencies, then a table and a plot.

perf_analyzer stops a whole run at its first failed request; such a run counts all its requests as failed, and the
program then ends with a status other than 0.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clients import options, report, transport, wire
from clients.address import host_port
from clients.options import trouble_reported
from clients.report import LoadTest, Run

PROMPTS = Path(__file__).with_name("prompts.jsonl")
POLICIES: dict[str, dict[str, Any]] = {report.PLAIN: {"num_draft_tokens": 0}, report.SPEC: {}}


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file with the key `prompt` and, where known, `workload`. Raises ValueError naming a line."""
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompts.append({"prompt": str(entry["prompt"]), "workload": str(entry.get("workload", "auto"))})
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: expected a JSON object with the key 'prompt'") from error
    if not prompts:
        raise ValueError(f"{path} has no prompts")
    return prompts


def input_data(prompts: Sequence[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """perf_analyzer's --input-data: one step a prompt, each input a list of one value."""
    steps = [
        {"messages": wire.chat_messages(("user", p["prompt"])), "workload": p["workload"], "stream": True, **settings}
        for p in prompts
    ]
    return {"data": [{name: [value] for name, value in step.items()} for step in steps]}


def arguments(url: str, data: Path, run: Run, folder: Path) -> list[str]:
    return [
        *("-m", wire.MODEL, "-i", "grpc", "-u", url, "--async", "--streaming"),
        *("--input-data", str(data), "--concurrency-range", str(run.concurrency)),
        *("--request-count", str(run.requested), "--warmup-request-count", str(run.concurrency)),
        *("--profile-export-file", str(folder / run.export_file)),
    ]


def plan(policies: Sequence[str], concurrencies: Sequence[int], rounds: int, requests: int) -> Iterator[Run]:
    """The policies take turns at each concurrency, the first one changing, so that drift hits all alike."""
    for concurrency in concurrencies:
        for turn in range(rounds):
            for policy in policies if turn % 2 == 0 else list(reversed(policies)):
                yield Run(
                    policy=policy,
                    concurrency=concurrency,
                    round=turn,
                    requested=max(requests, concurrency),
                    export_file=f"{policy}-{concurrency}-{turn}.json",
                )


def execute(command: Sequence[str], timeout_s: float) -> str:
    """Run perf_analyzer. Gives what went wrong, or nothing."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_s:g} s, stopped; raise --timeout or lower --requests"
    if result.returncode == 0:
        return ""
    complaint = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    return " ".join(complaint[-3:]) or f"perf_analyzer ended with status {result.returncode}"


def perf_analyzer_command(given: str | None) -> list[str]:
    """The words that start perf_analyzer. Raises OSError where none is given and none is on the PATH."""
    if given:
        return shlex.split(given)
    found = shutil.which("perf_analyzer")
    if not found:
        raise OSError(
            "perf_analyzer is not on the PATH: `make load-test` sets one up, `pip install perf-analyzer` brings one, "
            "and --perf-analyzer names one"
        )
    return [found]


def run_all(console: Console, command: list[str], url: str, runs: list[Run], folder: Path, timeout_s: float) -> None:
    """Do the runs in order, with a bar; failures are noted in them."""
    columns = (TextColumn("[dim]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(runs))
        for run in runs:
            bar.update(task, description=f"{run.policy}, {run.concurrency} users, {run.requested} requests")
            data = folder / f"input-{run.policy}.json"
            run.error = execute([*command, *arguments(url, data, run, folder)], timeout_s)
            bar.advance(task)


def chosen(text: str, known: Sequence[str]) -> list[str]:
    """Names from a comma-separated list. Raises ValueError for an unknown one."""
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"unknown policy '{wrong[0]}': there are {', '.join(known)}")
    return names


def counts(text: str) -> list[int]:
    """Whole numbers above 0 from a comma-separated list. Raises ValueError for anything else."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if 0 in numbers:
        raise ValueError(f"--concurrency is '{text}': expected whole numbers above 0, such as 1,4,16")
    return numbers


def main(
    url: options.GrpcUrl = options.DEFAULT_URL,
    concurrency: Annotated[str, typer.Option(help="Numbers of concurrent users.")] = "1,4,16",
    requests: Annotated[int, typer.Option(min=1, help="Requests of a run, at least one a user.")] = 32,
    policies: Annotated[str, typer.Option(help="plain (no drafts), spec (as the server is set up), or both.")] = "spec",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each policy at each concurrency.")] = 1,
    prompts: Annotated[Path, typer.Option(exists=True, help="JSONL with the key prompt.")] = PROMPTS,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one run may take.")] = 900.0,
    output: Annotated[Path, typer.Option(help="Each load test gets a folder of its own in it.")] = Path(
        ".cache/load_test"
    ),
    perf_analyzer: Annotated[str | None, typer.Option(help="How to start it; by default the one on the PATH.")] = None,
) -> None:
    """Load a running server and report its speed."""
    console = Console()
    with trouble_reported():
        runs = list(plan(chosen(policies, list(POLICIES)), counts(concurrency), rounds, requests))
        entries = read_prompts(prompts)
        url = host_port(url)
        transport.require_server(url)
        command = perf_analyzer_command(perf_analyzer)
        folder = output / time.strftime("%Y%m%d-%H%M%S")
        folder.mkdir(parents=True)
        settings = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        for policy in POLICIES:
            data = input_data(entries, settings | POLICIES[policy])
            (folder / f"input-{policy}.json").write_text(json.dumps(data))
        run_all(console, command, url, runs, folder, timeout)
        title = f"{len(entries)} prompts from {prompts.name}, up to {max_tokens} tokens, temperature {temperature:g}"
        (folder / report.RUNS_FILE).write_text(LoadTest(title=title, runs=runs).model_dump_json(indent=2))
        points = report.report(console, folder)
    if any(point.failed for point in points):
        raise typer.Exit(1)


if __name__ == "__main__":
    options.run(main)
