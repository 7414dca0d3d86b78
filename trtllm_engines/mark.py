"""Two notes of the build: in the converted checkpoint, what the engine is to capture and what the conversion lost of
the model; beside the engine, on what it was built."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from trtllm_engines.pin import CAPTURED, STAMP

RENORMALIZE = 1  # tensorrt_llm/layers/moe.py, MoeConfig.ExpertScaleNormalizationMode

app = typer.Typer(help=__doc__)


@app.command()
def checkpoint(
    folder: Annotated[Path, typer.Option(help="A converted checkpoint.")],
    layers: Annotated[str, typer.Option(help="Ids with commas; the number of layers = after the final norm.")],
    source: Annotated[Path, typer.Option(help="The checkpoint from the hub that it was converted from.")],
) -> None:
    """Write them into the converted checkpoint's config.json, from where they get into the engine's."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config[CAPTURED] = [int(layer) for layer in layers.split(",")]
    try:
        restore(config, json.loads((source / "config.json").read_text()))
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    file.write_text(json.dumps(config, indent=4))


def restore(config: dict[str, Any], source: dict[str, Any]) -> None:
    """Put into a converted checkpoint's configuration what the conversion lost of its source's.

    The experts' weights: models/qwen/config.py does not normalise them, whatever `norm_topk_prob` says
    (NVIDIA/TensorRT-LLM#4058). The rotary base: the container's transformers 4.57 does not know `rope_parameters`,
    which 5 writes, and takes its default. Raises ValueError where scaled positions were lost, or experts.
    """
    if source.get("norm_topk_prob") and source.get("num_experts"):
        if isinstance(config.get("moe"), dict):
            config["moe"]["normalization_mode"] = RENORMALIZE
        elif "moe_num_experts" in config:  # the older form, which the same class reads
            config["moe_normalization_mode"] = RENORMALIZE
        else:
            raise ValueError("the model has experts, the converted config.json neither 'moe' nor 'moe_num_experts'")
    if rope := source.get("rope_parameters"):
        if rope.get("rope_type", "default") != "default" and not config.get("rotary_scaling"):
            raise ValueError(
                f"the conversion lost the positions' scaling '{rope['rope_type']}': transformers 5 wrote the "
                "checkpoint's config.json, 1.2.1 reads `rope_theta` and `rope_scaling` in it; take the original file"
            )
        config["rotary_base"] = rope["rope_theta"]


@app.command()
def engine(
    folder: Annotated[Path, typer.Option(help="A built engine.")],
    target: Annotated[str, typer.Option(help="Its recipe.")],
    precision: Annotated[str, typer.Option(help="Its precision.")],
) -> None:
    """Write what config.json does not say: recipe, GPU, compute capability, TensorRT."""
    import torch  # only the container has one with CUDA

    major, minor = torch.cuda.get_device_capability()
    stamp = {
        "target": target,
        "precision": precision,
        "sm": 10 * major + minor,
        "gpu": torch.cuda.get_device_name(),
        "tensorrt": version("tensorrt"),
    }
    (folder / STAMP).write_text(json.dumps(stamp, indent=4))


if __name__ == "__main__":
    app()
