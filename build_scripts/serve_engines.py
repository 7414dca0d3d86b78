"""What `make serve ENGINE=tensorrt_llm` runs: the container's own Triton over the engines that `make engines` built."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from build_scripts.container_install import find_container_install
from build_scripts.engines import folded
from build_scripts.serve import foreground
from build_scripts.server import CONTROL, COORDINATOR, HOST, Report, TritonServer
from build_scripts.triton_install import PreflightError
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import ROOT, Folders
from trtllm_engines.launch import MPIRUN, with_ranks
from trtllm_engines.pin import EXAMPLES
from trtllm_engines.plan import GPUS
from trtllm_engines.recipe import Precision, Recipe
from trtllm_engines.serve_settings import settings_of
from trtllm_engines.validate import EngineError, mismatches, read, serving_sm, show


class RankedServer(TritonServer):
    """A server whose target runs on several GPUs, one process each."""

    def __init__(self, ranks: int, **options: Any) -> None:
        super().__init__(**options)
        self.ranks = ranks

    def check(self) -> None:
        super().check()
        if self.ranks > 1 and shutil.which(MPIRUN[0]) is None:
            raise PreflightError(f"{self.ranks} GPUs share the target, and there is no {MPIRUN[0]} here to start them")

    def command(self) -> list[str]:
        return with_ranks(super().command(), self.ranks)


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8; the recipe's first where not given.")] = "",
    work: Annotated[Path, typer.Option(file_okay=False, help="Where `make engines` has put them.")] = ROOT / "engines",
    http_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535)] = 8002,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all.")] = HOST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands, start nothing.")] = False,
) -> None:
    """Check the engine against its recipe, then serve until Ctrl-C, which lets running requests finish."""
    console = Console()

    def server(settings: Path, report: Report = lambda _: None) -> TritonServer:
        return RankedServer(
            recipe.tensor_parallel,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            host=host,
            environment={"ANGELSPEC_SETTINGS": str(settings)},
            report=report,
            install=find_container_install(),
        )

    try:
        recipe = recipes.load(target)
        recipe.check_buildable()
        chosen = recipe.chosen(precision)
        folders = Folders.under(work, recipe, chosen, Path(EXAMPLES))
        if dry_run:
            with tempfile.TemporaryDirectory() as folder:
                command = server(_settings_file(recipe, chosen, folders, Path(folder))).command()
            _print_start(command, folders, http_port, console)
            return
        if not folders.settings.is_file():
            raise EngineError(
                f"'{folders.settings}' is not there: run `python3 -m build_scripts.engines --target {target}`"
            )
        config, stamp = read(folders.target, recipe.tensor_parallel)
        if found := mismatches(config, stamp, recipe, chosen, serving_sm()):
            console.print(show(found))
            raise typer.Exit(1)
    except (recipes.RecipeError, EngineError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    foreground(lambda report: server(folders.settings, report))


def _settings_file(recipe: Recipe, precision: Precision, folders: Folders, scratch: Path) -> Path:
    """The settings beside the engines, or where there are none yet, what they would be on the smaller H20."""
    if folders.settings.is_file():
        return folders.settings
    file = scratch / folders.settings.name
    file.write_text(yaml.safe_dump(settings_of(recipe, precision, folders, GPUS[0].memory)))
    return file


def _print_start(command: list[str], folders: Folders, http_port: int, console: Console) -> None:
    """As one would type it; the coordinator is loaded last, once the others can be called."""
    variables = {"ANGELSPEC_SETTINGS": str(folders.settings), **CONTROL}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    load = f"curl -f -X POST localhost:{http_port}/v2/repository/models/{COORDINATOR}/load"
    console.print(f"{words} \\\n{folded(command)}\n{load}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
