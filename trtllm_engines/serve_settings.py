"""Settings of a server for built engines: `angelspec.yaml` beside them, sized for the GPU that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from trtllm_engines import recipe as recipes
from trtllm_engines.commands import Folders
from trtllm_engines.pin import EXAMPLES
from trtllm_engines.plan import GB, fit, make
from trtllm_engines.recipe import Precision, Recipe, RecipeError

LOOKUP = "drafter_prompt_lookup"
RECURRENT = ("mtp", "eagle3")

HEAD = """# Written by `make engines` for this GPU; every key is in docs/settings.md.
# Sequences are what the KV cache holds at full length (`make plan`), at most what the engine was built for. More of
# them fit with a lower max_length.
"""


def settings_of(recipe: Recipe, precision: Precision, folders: Folders, memory: float) -> dict[str, Any]:
    """The settings tree, with the drafters that are built. memory: bytes of the GPU.

    Raises RecipeError where not one sequence fits.
    """
    sequences = min(recipe.limits.max_batch_size, fit(make(recipe, precision), memory).sequences)
    if sequences < 1:
        raise RecipeError(
            f"{recipe.name} in {precision} leaves no room on {memory / GB:.0f} GB for one sequence of "
            f"{recipe.limits.max_length} tokens: see `make plan TARGET={recipe.name}`"
        )
    return {
        "target": {
            "engine": "tensorrt_llm",
            "checkpoint": str(folders.checkpoint.resolve()),
            "engine_folder": str(folders.target.resolve()),
            "dtype": "bfloat16",
            "device": "cuda",
            "feature_layers": list(recipe.captured_layers),
        },
        "coordinator": {
            "max_sequences": sequences,
            "max_length": recipe.limits.max_length,
            "depth": recipe.depth,
            "prefill_rows": recipe.limits.max_rows - recipe.verify_rows,
        },
        **_drafters(recipe, folders),
        "budget": {"policy": "dcut", "max_skipped_steps": 16, "rho": [0, 0.25, 0.5, 0.75, 1]},
    }


def _drafters(recipe: Recipe, folders: Folders) -> dict[str, Any]:
    """Those whose engines have been built; block drafters for code and math, recurrent ones for chat, as long as both
    are there. Nothing where none is: the default is prompt lookup."""
    places = {name: folders.drafters / name for name in recipe.drafters}
    built = {name: folder for name, folder in places.items() if any(folder.glob("*.engine"))}
    if not built:
        return {}
    recurrent = [name for name in built if recipe.drafters[name].kind in RECURRENT]
    blocks = [name for name in built if name not in recurrent]
    chat, others = (recurrent or blocks)[0], (blocks or recurrent)[0]
    networks = {
        name: {
            "kind": "network",
            "engine": "tensorrt",
            "process": "target",
            "device": "cuda",
            "folder": str(folder.resolve()),
        }
        for name, folder in built.items()
    }
    return {
        "drafters": {LOOKUP: {"kind": "prompt_lookup", "process": "coordinator"}, **networks},
        "routes": {"chat": chat, "code": others, "math": others},
        "shared_drafters": [LOOKUP],
    }


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8.")],
    work: Annotated[Path, typer.Option(help="Folder of checkpoints and engines.")],
) -> None:
    """Write the settings of a server for a target's engines."""
    import torch  # only the container has one with CUDA

    try:
        recipe = recipes.load(target)
        chosen = recipe.chosen(precision)
        folders = Folders.under(work, recipe, chosen, Path(EXAMPLES))
        tree = settings_of(recipe, chosen, folders, torch.cuda.get_device_properties(0).total_memory)
    except RecipeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    folders.settings.write_text(HEAD + yaml.safe_dump(tree, sort_keys=False))
    typer.echo(f"wrote {folders.settings}")


if __name__ == "__main__":
    typer.run(main)
