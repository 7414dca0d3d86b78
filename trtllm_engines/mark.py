"""Two notes of the build: what an engine is to capture, in its checkpoint; on what it was built, beside it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from trtllm_engines.pin import CAPTURED, STAMP

app = typer.Typer(help=__doc__)


@app.command()
def checkpoint(
    folder: Annotated[Path, typer.Option(help="A converted checkpoint.")],
    layers: Annotated[str, typer.Option(help="Ids with commas; the number of layers = after the final norm.")],
) -> None:
    """Write the captured layers into a checkpoint's config.json, from where they get into the engine's."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config[CAPTURED] = [int(layer) for layer in layers.split(",")]
    file.write_text(json.dumps(config, indent=4))


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
