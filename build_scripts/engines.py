"""What `make engines` runs: from a checkpoint on the hub to TensorRT-LLM engines, or with DRY_RUN=1 the steps alone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from trtllm_engines import recipe as recipes
from trtllm_engines.commands import ROOT, Folders, Step, steps
from trtllm_engines.pin import EXAMPLES, IMAGE, TENSORRT_LLM
from trtllm_engines.preflight import ThisMachine, problems, unfit_options

DONE = "done.json"  # in the build's folder: the command lines that have run through
WIDTH = 110


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8; the recipe's first where not given.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps, run none.")] = False,
    work: Annotated[Path, typer.Option(file_okay=False, help="Folder for checkpoints and engines.")] = ROOT / "engines",
    examples: Annotated[Path, typer.Option(help="TensorRT-LLM's examples.")] = Path(EXAMPLES),
    drafters: Annotated[bool, typer.Option(help="Build the drafters' engines too.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Run steps again that have run through.")] = False,
) -> None:
    """Build the engines of a target, step by step; a step whose command line has run through is not run again."""
    console = Console()
    try:
        recipe = recipes.load(target)
        chosen = recipe.chosen(precision)
        folders = Folders.under(work, recipe, chosen, examples)
        planned = steps(recipe, chosen, folders, drafters)
    except recipes.RecipeError as error:
        _fail(console, [str(error)])
    if unfit := unfit_options(planned):
        _fail(console, unfit)
    if dry_run:
        _print_steps(planned, console)
        return
    if found := problems(recipe, planned, folders, ThisMachine()):
        _fail(console, found)
    _run(planned, folders.target.parent / DONE, force, console)
    console.print(f"[green]built[/] {folders.target}", highlight=False)


def _print_steps(planned: Sequence[Step], console: Console) -> None:
    console.print(f"[dim]# TensorRT-LLM {TENSORRT_LLM}, in {IMAGE}[/]", highlight=False, soft_wrap=True)
    for number, step in enumerate(planned, 1):
        console.print(f"\n[dim]# {number} {step.name}: {step.why}[/]", highlight=False)
        console.print(folded(step.command), markup=False, highlight=False, soft_wrap=True)
    console.print("\n[dim]# nothing was run; every option above is in the record of its program[/]", highlight=False)


def folded(command: Sequence[str]) -> str:
    """A command line that a shell takes, an option with its value never apart."""
    words: list[str] = []
    for word in map(shlex.quote, command):
        if words and words[-1].startswith("--") and not word.startswith("--"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def _run(planned: Sequence[Step], record: Path, force: bool, console: Console) -> None:
    """Run what has not run yet, and all that comes after it. Exits with the code of a step that fails."""
    done: dict[str, str] = json.loads(record.read_text()) if record.is_file() and not force else {}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    fresh = True
    for step in planned:
        line = shlex.join(step.command)
        fresh = fresh and done.get(step.name) == line
        if fresh:
            console.print(f"[dim]{step.name}: has run[/]", highlight=False)
            continue
        console.print(f"[bold]{step.name}[/]: {step.why}\n{folded(step.command)}", highlight=False, soft_wrap=True)
        code = subprocess.run(step.command, cwd=ROOT, env=environment, check=False).returncode
        if code:
            _fail(console, [f"step {step.name} ended with code {code}; what it printed is above. Run again to go on"])
        done[step.name] = line
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(done, indent=4))


def _fail(console: Console, messages: Sequence[str]) -> NoReturn:
    for message in messages:
        console.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
