"""Send bad requests to a server of our own and watch what they do to it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from build_scripts.server import TROUBLE, TritonServer
from tests.fuzz.campaign import Campaign, Tally
from tests.fuzz.case import ROUTES, Case

VERDICTS = ("answered", "refused by name", "refused by Triton", "deadline", "cancelled", "left", "hurt")
SHOWN = 2000  # characters of a case on the command line; a longer one goes to a file


def table(tally: Tally) -> Table:
    made = Table(title="Outcomes", box=None, pad_edge=False)
    for heading in ("route", *(verdict.replace("refused ", "") for verdict in VERDICTS), "sum"):
        made.add_column(heading, justify="left" if heading == "route" else "right")
    for route in (*ROUTES, "sum"):
        routes = ROUTES if route == "sum" else (route,)
        counts = [sum(tally.cells[r, verdict] for r in routes) for verdict in VERDICTS]
        made.add_row(route, *map(str, counts), str(sum(counts)))
    return made


def show(tally: Tally, console: Console, folder: Path) -> None:
    """What did harm, each with the command that does it again."""
    for i, finding in enumerate(tally.findings):
        console.print(f"hurt: {finding.symptom}", style="red", markup=False, highlight=False)
        if finding.case is None:
            again = f"--seed {finding.batch} --cases 100"
        elif len(text := finding.case.to_json()) <= SHOWN:
            again = f"--case {shlex.quote(text)}"
        else:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"case-{finding.batch}-{i}.json"
            path.write_text(text)
            again = f"--case @{path}"
        console.print(f"again: python -m tests.fuzz {again}", markup=False, highlight=False, soft_wrap=True)


def main(
    cases: Annotated[int, typer.Option(min=1, help="how many requests")] = 10_000,
    seed: Annotated[int, typer.Option(help="number of the first batch of 100; the same one draws the same cases")] = 1,
    minutes: Annotated[float, typer.Option(help="end after so long, however many were sent")] = 60.0,
    case: Annotated[str, typer.Option(help="one case as it was printed, or @file; instead of all else")] = "",
) -> None:
    """Start a server, send CASES requests, eight at once, and show what came back. Exit status 1 where one did harm."""
    console = Console()
    server = TritonServer()

    def restart() -> None:
        server.kill()
        server.start()

    try:
        with console.status("starting a server"):
            server.start()
        campaign = Campaign(server, restart)
        if case:
            text = Path(case[1:]).read_text() if case.startswith("@") else case
            harm = campaign.one(Case.from_json(text))
            console.print(harm or "no harm", markup=False, highlight=False)
            raise typer.Exit(bool(harm))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("cases", total=cases)

            def told(count: int) -> None:
                hurt = len(campaign.tally.findings)
                progress.update(task, completed=count, description=f"cases, {hurt} hurt" if hurt else "cases")

            tally = campaign.run(cases, seed, until=time.monotonic() + minutes * 60, told=told)
        console.print(table(tally))
        console.print(f"{tally.good} good requests beside them; seed {seed}")
        for words, many in tally.refusals.most_common():
            console.print(f"  Triton, {many}: {words}", markup=False, highlight=False)
        show(tally, console, server.settings.cache_dir / "fuzz")
        raise typer.Exit(bool(tally.findings))
    except TROUBLE as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    finally:
        with console.status("stopping the server"):
            server.stop()


if __name__ == "__main__":
    typer.run(main)
