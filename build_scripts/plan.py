"""What `make plan` shows: memory of a target and its drafters, the batch that fits, where verification turns."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from trtllm_engines import recipe as recipes
from trtllm_engines.plan import GB, GPUS, Plan, fit, make
from trtllm_engines.sizes import parameters


def main(
    target: Annotated[str, typer.Option(help="A recipe of trtllm_engines/recipes.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp8; the recipe's first where not given.")] = "",
) -> None:
    """Show the plan of a target. Arithmetic over its recipe; nothing is measured."""
    console = Console()
    try:
        recipe = recipes.load(target)
        plan = make(recipe, recipe.chosen(precision))
    except recipes.RecipeError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    for table in (memory(plan), batches(plan)):
        console.print(table)
    console.print(rows(plan), highlight=False)
    if recipe.missing:
        console.print(f"\ncannot be built yet: {' '.join(recipe.missing.split())}", style="yellow", highlight=False)


def memory(plan: Plan) -> Table:
    """Bytes of one GPU that are not KV cache, then what a token of context costs."""
    recipe = plan.recipe
    gpus = f", one of {recipe.tensor_parallel} GPUs" if recipe.tensor_parallel > 1 else ""
    billions = parameters(recipe.geometry).total / 1e9
    table = Table(title=f"{recipe.name} ({billions:.2f} B parameters), {plan.precision}{gpus}: memory")
    table.add_column("what")
    table.add_column("GB", justify="right")
    table.add_column("how")
    for use in plan.uses:
        table.add_row(use.what, f"{use.bytes / GB:.2f}", use.how)
    table.add_section()
    table.add_row("sum", f"{plan.fixed / GB:.2f}", "without KV cache")
    table.add_section()
    each = (plan.kv_target + plan.kv_drafters) * recipe.limits.max_length / GB
    table.add_row("KV, a token", "", f"{plan.kv_target:,} B target + {plan.kv_drafters:,} B drafters")
    table.add_row("KV, a sequence", f"{each:.2f}", f"of {recipe.limits.max_length:,} tokens")
    return table


def batches(plan: Plan) -> Table:
    """What each GPU holds beside that."""
    limits = plan.recipe.limits
    table = Table(title=f"KV cache: {plan.recipe.kv_fraction:.0%} of what is left (GB = 1e9 bytes, vendor figures)")
    table.add_column("GPU")
    for heading in ("GB", "tokens", f"sequences of {limits.max_length:,}", f"context at B = {limits.max_batch_size}"):
        table.add_column(heading, justify="right")
    for gpu in GPUS:
        held = fit(plan, gpu.memory)
        if held.pool <= 0:
            table.add_row(gpu.name, "does not fit", "-", "-", "-")
            continue
        context = min(limits.max_length, held.tokens // limits.max_batch_size)
        table.add_row(gpu.name, f"{held.pool / GB:.2f}", f"{held.tokens:,}", f"{held.sequences:,}", f"{context:,}")
    return table


def rows(plan: Plan) -> str:
    """The sentence on where more rows start to cost."""
    gpu, depth = GPUS[0], plan.recipe.depth
    spread = " (experts chosen evenly)" if plan.recipe.geometry.experts else ""
    peak = gpu.flops[plan.precision] / 1e12
    return (
        f"A verify pass turns compute-bound on H20 at {plan.ridge} rows{spread}: {peak:.0f} TFLOPS "
        f"over {gpu.bandwidth / 1e12:.1f} TB/s, both the vendor's, KV reads left out.\n"
        f"At depth {depth} that is {plan.ridge / (depth + 1):.1f} sequences verified in full; "
        "D-cut's own table is measured at start-up and overrides this estimate."
    )


if __name__ == "__main__":
    typer.run(main)
