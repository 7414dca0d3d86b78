"""Whether the output is plain decoding's, token for token, under every combination of settings that is allowed.

Results are kept in the cache, so a run that was stopped goes on; the page says what is still missing.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import time
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM

from build_scripts.exactness import combinations, near_ties
from build_scripts.exactness import page as pages
from build_scripts.exactness.combinations import DFLY, MTP, Run
from build_scripts.exactness.compare import PASSES, Told, fill
from build_scripts.exactness.questions import Question, ask_all, chat_prompts
from build_scripts.exactness.results import Results, Tokens
from build_scripts.exactness.running import Subject
from python_backend.assembly.engines import share_cores
from python_backend.checkpoints.checkpoint import resolve_checkpoint, weights_sha256
from python_backend.settings import ROOT, DrafterSettings, load

FOLDER = ROOT / "docs" / "measurements"
TOKENS, SLOTS, MAX_LENGTH = 64, 32, 256
PACKAGES = ("openvino", "torch", "transformers", "numpy")


def subject_of() -> Subject:
    """The embedded model, or the one that the settings name, with the shipped drafters."""
    settings = load()
    checkpoint = resolve_checkpoint(settings)
    networks = {name: DrafterSettings(kind="network") for name in (MTP, DFLY)}
    questions = ask_all(chat_prompts(checkpoint), TOKENS)
    return Subject(checkpoint, networks, questions, SLOTS, MAX_LENGTH, settings.cache_dir, target={})


def identity_of(subject: Subject) -> dict[str, Any]:
    """What results depend on: with anything else they are begun anew."""
    name, features = pages.cpu()
    return {
        "cpu": [name, *features],
        "checkpoint": weights_sha256(subject.checkpoint),
        "questions": hashlib.sha256(repr(subject.questions).encode()).hexdigest(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
    }


def independent_gap(checkpoint: Path) -> Any:
    """`near_ties.gap` by a model that is loaded when the first mismatch needs it."""

    @cache
    def model() -> Any:
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def gap(question: Question, before: Tokens, one: int, other: int) -> float:
        return near_ties.gap(model(), list(question.prompt), question.sampling, before, one, other)

    return gap


def main(
    minutes: Annotated[float, typer.Option(help="Stop after the pass that is running then; 0 = go on to the end.")] = 0,
    only: Annotated[str, typer.Option(help="Only runs whose name contains this, as 'openvino exact'.")] = "",
    folder: Annotated[Path, typer.Option(help="Where the page goes.")] = FOLDER,
) -> None:
    """Generate, compare, and write the page. Ends with an error where a token differs by more than rounding."""
    share_cores()
    console, started = Console(), time.monotonic()
    subject = subject_of()
    identity = identity_of(subject)
    results = Results(subject.cache_dir / "exactness" / f"{pages.slug(identity['cpu'][0])}.json", identity)
    allowed = combinations.allowed()
    runs = [run for run in sorted(allowed) if only in str(run)]
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as bars:
        complete = fill(
            subject,
            runs,
            PASSES,
            results,
            independent_gap(subject.checkpoint),
            _told(bars, runs, results, lambda: 0 < minutes * 60 < time.monotonic() - started),
        )
    console.print(pages.table(results, allowed).rich())
    console.print(pages.refusals().rich())
    tally, ties, real = pages.in_all(results, allowed)
    facts = {
        "Date": datetime.date.today().isoformat(),
        "Packages": ", ".join(f"{name} {version}" for name, version in identity["packages"].items()),
        "Target": f"{subject.checkpoint.name}, {TOKENS} tokens an answer",
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"exactness-{pages.slug(identity['cpu'][0])}.md"
    written.write_text(pages.page(results, allowed, facts))
    console.print(f"{tally.compared:,} tokens compared, {real} mismatches beyond rounding, {ties} near-ties: {written}")
    if not complete:
        console.print("not all combinations are through: run it again, it goes on from here")
    if real:
        raise typer.Exit(1)


def _told(bars: Progress, runs: list[Run], results: Results, stop: Any) -> Told:
    done = sum(results.has(run, how.name) for run in runs for how in PASSES)
    overall = bars.add_task("passes", total=len(runs) * len(PASSES), completed=done)
    answers = bars.add_task("", total=None)

    def begin(name: str, count: int) -> None:
        bars.reset(answers, description=name, total=count)

    return Told(begin, lambda: bars.advance(answers), lambda: bars.advance(overall), stop)


if __name__ == "__main__":
    typer.run(main)
