"""A trained drafter's graphs as ONNX files, which `trtllm_engines.build_drafter` turns into engines.

Runs where the drafter was trained; needs no GPU. Dynamic dimensions carry their names into the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.export import Dim

from python_backend.drafters.weights import load
from python_backend.engines.checkpoint import CheckpointError
from trtllm_engines.drafter_graphs import Graph, GraphError, Input, Lent, graphs

OPSET = 18  # TensorRT 10's parser reads it; newer ones bring operators that it may not have
EXAMPLE = {"sequences": 3, "rows": 5, "context": 7, "chunk": 4}  # sizes to trace with: distinct, and above one


def export(graph: Graph, file: Path, dtype: torch.dtype) -> None:
    """Write one graph. Its weights lie beside it where they are too large for the file itself."""
    examples = tuple(_example(declared, dtype) for declared in graph.inputs)
    with torch.inference_mode():
        program = torch.onnx.export(
            graph.module.to(dtype).eval(),
            examples,
            dynamo=True,
            input_names=[declared.name for declared in graph.inputs],
            output_names=list(graph.outputs),
            dynamic_shapes=_dynamic(graph),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None  # without a file it is returned
    program.save(str(file), external_data=_bytes(graph, dtype) > 1 << 30)


def _example(declared: Input, dtype: torch.dtype) -> Tensor:
    shape = [EXAMPLE[size] if isinstance(size, str) else size for size in declared.shape]
    return torch.ones(shape, dtype=torch.int64) if declared.integer else torch.zeros(shape, dtype=dtype)


def _dynamic(graph: Graph) -> Any:
    """As torch.export wants it: by position, and once more inside where forward takes *inputs."""
    sizes = {name: Dim(name, min=1) for name in EXAMPLE}
    each = tuple(
        {axis: sizes[size] for axis, size in enumerate(declared.shape) if isinstance(size, str)}
        for declared in graph.inputs
    )
    return (each,) if isinstance(graph.module, Lent) else each


def _bytes(graph: Graph, dtype: torch.dtype) -> int:
    return sum(parameter.numel() for parameter in graph.module.parameters()) * dtype.itemsize


def main(
    drafter: Annotated[Path, typer.Option(help="Folder of the trained drafter.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder of the target that it was trained for.")],
    output: Annotated[Path, typer.Option(help="Folder for the graphs: engines/TARGET/onnx/DRAFTER.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 for engines, float32 to compare.")] = "bfloat16",
) -> None:
    """Write every graph of a drafter."""
    try:
        found = graphs(load(drafter, checkpoint))
    except (CheckpointError, GraphError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    output.mkdir(parents=True, exist_ok=True)
    for graph in found:
        export(graph, output / f"{graph.name}.onnx", getattr(torch, dtype))
        typer.echo(f"wrote {output / graph.name}.onnx")


if __name__ == "__main__":
    typer.run(main)
