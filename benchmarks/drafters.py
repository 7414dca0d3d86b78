"""What each drafter gains when it is served: tokens per second against plain decoding, in turn, on held-out prompts.

Three servers answer the same prompts in every mode: drafters that are asked in every step, the same asked where it
pays, and the same beside prompt lookup.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from rich.console import Console
from rich.progress import track

from build_scripts.server import TritonServer
from build_scripts.tables import Grid, write_section
from clients import transport, wire
from clients.wire import Answer
from python_backend.settings import ROOT, WORKLOADS, load
from training.corpus import ship
from training.corpus.shards import Corpus, corpus_folder

PAGE = ROOT / "docs" / "drafters.md"
LOOKUP, MTP, DFLY = "drafter_prompt_lookup", "drafter_mtp", "drafter_dfly"
DRAFTERS = {
    LOOKUP: {"kind": "prompt_lookup", "process": "coordinator"},
    MTP: {"kind": "network"},
    DFLY: {"kind": "network"},
}
ROUTES = {"chat": MTP, "code": DFLY, "math": LOOKUP}  # so that a request's workload names its drafter


class Mode(NamedTuple):
    """How a request is decoded."""

    name: str
    server: str
    request: dict[str, Any]


SERVERS: dict[str, dict[str, Any]] = {  # what each has beside the shipped settings
    "every step": {"shared_drafters": [], "max_skipped_steps": 1},
    "alone": {"shared_drafters": []},
    "both": {"shared_drafters": [LOOKUP]},
}
MODES = (
    Mode("plain", "alone", {"num_draft_tokens": 0}),
    Mode("prompt lookup", "alone", {"workload": "math"}),
    Mode("MTP, in every step", "every step", {"workload": "chat"}),
    Mode("MTP, where it pays", "alone", {"workload": "chat"}),
    Mode("MTP or lookup", "both", {"workload": "chat"}),
    Mode("DFly, in every step", "every step", {"workload": "code"}),
    Mode("DFly, where it pays", "alone", {"workload": "code"}),
    Mode("DFly or lookup", "both", {"workload": "code"}),
)


@dataclass
class Measured:
    """One mode on the prompts of one domain, round by round."""

    tokens_per_s: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def mean_length(self) -> float:
        return wire.total(a.summary.speculation for a in self.answers if a.summary).mean_acceptance_length


def prompts(count: int) -> dict[str, list[list[int]]]:
    """The first held-out prompts of each domain."""
    settings = load()
    if not corpus_folder(settings.cache_dir, "held_out").is_dir():
        ship.unpack_command("held_out")
    found: dict[str, list[list[int]]] = {domain: [] for domain in WORKLOADS}
    shard = next(Corpus(settings.cache_dir, "held_out").shards())
    for ids, start, domain in zip(shard.ids(), shard.response_start, shard.domain, strict=True):
        if len(found[WORKLOADS[domain]]) < count:
            found[WORKLOADS[domain]].append(ids[:start].tolist())
    return found


def settings_file(folder: Path, name: str, also: list[str], **budget: int) -> Path:
    values = yaml.safe_load((ROOT / "angelspec.yaml").read_text())
    values |= {"drafters": DRAFTERS, "routes": ROUTES, "shared_drafters": also, "budget": values["budget"] | budget}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def run(url: str, batch: Sequence[list[int]], request: dict[str, Any], streams: int) -> tuple[float, list[Answer]]:
    """Answer all prompts over so many streams. Returns tokens per second, and the answers."""

    def ask(ids: list[int]) -> Answer:
        answer = Answer()
        for chunk in transport.stream_grpc({"input_ids": ids, **request}, url):
            answer.add(chunk)
        return answer

    started = time.monotonic()
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(ask, batch))
    return sum(len(a.token_ids) for a in answers) / (time.monotonic() - started), answers


def compare(
    urls: dict[str, str], domains: dict[str, list[list[int]]], request: dict[str, Any], streams: int, rounds: int
) -> dict[str, dict[str, Measured]]:
    """Every mode on every domain, in turn; the order turns round from round to round, so that drift hits all."""
    results = {domain: {mode.name: Measured() for mode in MODES} for domain in domains}
    turns = [(domain, mode) for r in range(rounds) for domain in domains for mode in MODES[:: 1 if r % 2 == 0 else -1]]
    for domain, mode in track(turns, f"{streams} streams", console=Console(stderr=True), transient=True):
        rate, answers = run(urls[mode.server], domains[domain], request | mode.request, streams)
        results[domain][mode.name].tokens_per_s.append(rate)
        results[domain][mode.name].answers += answers
    return results


def table(title: str, results: dict[str, dict[str, Measured]]) -> Grid:
    """Speed against plain decoding as the median of the rounds with their range, and mean acceptance length."""
    rows = []
    for mode in MODES:
        row = [mode.name]
        for measured in results.values():
            mine, plain = measured[mode.name], measured["plain"]
            if mode.name == "plain":
                row.append(f"{statistics.median(plain.tokens_per_s):.0f} tokens/s")
                continue
            ratios = [a / b for a, b in zip(mine.tokens_per_s, plain.tokens_per_s, strict=True)]
            row.append(
                f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}), {mine.mean_length:.2f}"
            )
        rows.append(row)
    return Grid(title, ["drafter", *results], rows)


def differing(results: dict[str, dict[str, Measured]]) -> int:
    """Answers whose tokens are not those of plain decoding."""
    return sum(
        a.token_ids != b.token_ids
        for measured in results.values()
        for mine in measured.values()
        for a, b in zip(mine.answers, measured["plain"].answers, strict=True)
    )


def main(
    streams: Annotated[list[int] | None, typer.Option(help="Requests at once.")] = None,
    count: Annotated[int, typer.Option(help="Prompts of each domain.")] = 8,
    tokens: Annotated[int, typer.Option(help="Of each answer, at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="Of sampling; answers depend on it, the noise is keyed.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/drafters.md.")] = False,
) -> None:
    """Measure, and say whether any token differs."""
    console = Console()
    request = {"max_tokens": tokens, "temperature": temperature, "seed": 1}
    grids = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {}
        for name, changes in SERVERS.items():
            environment = {"ANGELSPEC_SETTINGS": str(settings_file(Path(folder), name, **changes))}
            with console.status("starting a server"):
                urls[name] = stack.enter_context(TritonServer(environment=environment)).grpc_url
        domains = prompts(count)
        for n in streams or [1, 8]:
            results = compare(urls, domains, request, n, rounds)
            grids.append(table(f"{min(n, count)} streams, temperature {temperature:g}", results))
            console.print(grids[-1].rich())
            console.print(f"answers that are not those of plain decoding: {differing(results)}")
    if write:
        text = "".join(f"{grid.title}:\n\n{grid.markdown()}\n" for grid in grids)
        write_section(PAGE, f"served, temperature {temperature:g}", text)


if __name__ == "__main__":
    typer.run(main)
