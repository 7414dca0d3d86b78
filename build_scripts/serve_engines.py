"""What `make serve ENGINE=tensorrt_llm` runs: the container's own Triton over the engines that `make engines` built."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from build_scripts.engines import folded
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import ROOT, Folders, shown
from trtllm_engines.pin import EXAMPLES
from trtllm_engines.validate import EngineError, mismatches, read, serving_sm, show

SERVER = "tritonserver"


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8; the recipe's first where not given.")] = "",
    work: Annotated[Path, typer.Option(file_okay=False, help="Where `make engines` has put them.")] = ROOT / "engines",
    http_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535)] = 8002,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, start nothing.")] = False,
) -> None:
    """Check the engine against its recipe, then become the server."""
    console = Console()
    try:
        recipe = recipes.load(target)
        recipe.check_buildable()
        chosen = recipe.chosen(precision)
        folders = Folders.under(work, recipe, chosen, Path(EXAMPLES))
        ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        environment, command = environment_of(folders), command_of(ports)
        if dry_run:
            variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
            console.print(f"{' '.join(variables)} \\\n{folded(command)}", markup=False, highlight=False, soft_wrap=True)
            return
        if not folders.settings.is_file():
            raise EngineError(f"'{folders.settings}' is not there: run `make engines TARGET={target}` first")
        config, stamp = read(folders.target, recipe.tensor_parallel)
        if found := mismatches(config, stamp, recipe, chosen, serving_sm()):
            console.print(show(found))
            raise typer.Exit(1)
        if shutil.which(SERVER) is None:
            raise EngineError(f"there is no {SERVER} here: start in the container, see docs/h20.md")
    except (recipes.RecipeError, EngineError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    os.chdir(ROOT)
    os.execvpe(SERVER, command, {**os.environ, **environment})


def environment_of(folders: Folders) -> dict[str, str]:
    """What the server's models need: the settings in force, and threads that sleep while they wait."""
    return {"ANGELSPEC_SETTINGS": shown(folders.settings), "OMP_WAIT_POLICY": "PASSIVE"}


def command_of(ports: dict[str, int]) -> list[str]:
    """Triton over the model repository as it is."""
    return [SERVER, "--model-repository=model_repository", *(f"--{name}-port={port}" for name, port in ports.items())]


if __name__ == "__main__":
    typer.run(main)
