"""Is an engine what its recipe says? Compares the folder's config.json and stamp with it, and says what to rebuild."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from trtllm_engines import recipe as recipes
from trtllm_engines.mark import RENORMALIZE
from trtllm_engines.pin import CAPTURED, IMAGE, SM, STAMP, TENSORRT_LLM, TOKENS_PER_BLOCK
from trtllm_engines.recipe import Precision, Recipe, RecipeError


class Mismatch(NamedTuple):
    """Something in which an engine is not what the settings want."""

    what: str
    engine: str
    expected: str
    remedy: str


class EngineError(ValueError):
    """A folder holds no engine, or not all of it."""


def read(folder: Path, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and stamp of an engine. Raises EngineError naming the file that is missing."""
    for name in ("config.json", STAMP, *(f"rank{rank}.engine" for rank in range(ranks))):
        if not (folder / name).is_file():
            raise EngineError(f"'{folder}' has no {name}: run `make engines` for this target")
    return json.loads((folder / "config.json").read_text()), json.loads((folder / STAMP).read_text())


def mismatches(
    config: dict[str, Any], stamp: dict[str, Any], recipe: Recipe, precision: Precision, sm: int
) -> list[Mismatch]:
    """Everything in which an engine is not what the recipe says. sm: compute capability of the GPU that serves."""
    model, build, sizes, limits = config["pretrained_config"], config["build_config"], recipe.geometry, recipe.limits
    plugins, fp8 = build["plugin_config"], "FP8" if precision == "fp8" else None
    again = f"python3 -m build_scripts.engines --target {recipe.name} --precision {precision} --force"
    image, gpu = f"in {IMAGE}: {again}", f"on this GPU: {again}"
    exact = [
        ("TensorRT-LLM", config.get("version"), TENSORRT_LLM, image),
        ("SM", stamp.get("sm"), sm, gpu),
        ("target", stamp.get("target"), recipe.name, again),
        ("dtype", model["dtype"], "bfloat16", again),
        ("weights", model["quantization"]["quant_algo"], fp8, again),
        ("KV cache", model["quantization"]["kv_cache_quant_algo"], fp8, again),
        ("logits", model["logits_dtype"], "float32", again),
        ("GPUs", model["mapping"]["tp_size"], recipe.tensor_parallel, again),
        ("vocabulary", model["vocab_size"], sizes.vocabulary, again),
        ("hidden size", model["hidden_size"], sizes.hidden, again),
        ("layers", model["num_hidden_layers"], sizes.layers, again),
        ("captured layers", model.get(CAPTURED), list(recipe.captured_layers), again),
        ("paged context FMHA", plugins["use_paged_context_fmha"], True, again),
        ("packed rows", plugins["remove_input_padding"], True, again),
        ("paged KV cache", plugins["paged_kv_cache"], True, again),
        ("tokens a block", plugins["tokens_per_block"], TOKENS_PER_BLOCK, again),
        *((what, is_, wanted, again) for what, is_, wanted in _experts(model, recipe)),
        ("fused residuals", plugins["reduce_fusion"] or plugins["norm_quant_fusion"], False, again),
    ]
    least = [
        ("sequences", build["max_batch_size"], limits.max_batch_size),
        ("length", build["max_seq_len"], limits.max_length),
        ("rows", build["max_num_tokens"], limits.max_rows),
        ("draft length", build["max_draft_len"], recipe.depth),
    ]
    return [
        *(Mismatch(what, str(is_), str(wanted), remedy) for what, is_, wanted, remedy in exact if is_ != wanted),
        *(Mismatch(what, str(is_), f"{wanted} or more", again) for what, is_, wanted in least if is_ < wanted),
    ]


def _experts(model: dict[str, Any], recipe: Recipe) -> list[tuple[str, Any, Any]]:
    """What of a mixture of experts is compared: (what, in the engine, in the recipe)."""
    if not (experts := recipe.geometry.experts):
        return []
    moe = model.get("moe") or {}
    return [
        ("experts", moe.get("num_experts"), experts.number),
        ("experts of a token", moe.get("top_k"), experts.per_token),
        ("experts' weights normalised", moe.get("normalization_mode") == RENORMALIZE, experts.normalised),
    ]


def serving_sm() -> int:
    """Compute capability of the GPU here, H20's where there is none."""
    import torch  # slow to import, and not needed to check a recipe

    if not torch.cuda.is_available():
        return SM
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    folder: Annotated[Path, typer.Option(help="The target's engine.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8; the recipe's first where not given.")] = "",
) -> None:
    """Exit 1 with a table of what to rebuild where the engine does not fit its recipe."""
    console = Console()
    try:
        recipe = recipes.load(target)
        chosen = recipe.chosen(precision)
        config, stamp = read(folder, recipe.tensor_parallel)
        found = mismatches(config, stamp, recipe, chosen, serving_sm())
    except KeyError as error:
        console.print(f"error: '{folder}/config.json' has no {error}: not an engine of {TENSORRT_LLM}", style="red")
        raise typer.Exit(1) from error
    except (RecipeError, EngineError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    if found:
        console.print(show(found))
        raise typer.Exit(1)
    console.print(f"[green]fits[/] {recipe.name}, {chosen}", highlight=False)


def show(found: list[Mismatch]) -> Table:
    table = Table(title="The engine does not fit its recipe")
    for heading in ("what", "engine", "recipe", "rebuild"):
        table.add_column(heading)
    for mismatch in found:
        table.add_row(*mismatch)
    return table


if __name__ == "__main__":
    typer.run(main)
