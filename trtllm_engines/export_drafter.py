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

from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.drafters.contract import CHUNK, CONTEXT, ROWS, SEQUENCES, Port
from python_backend.drafters.graphs import Graph, Lent, graphs
from python_backend.drafters.weights import load
from trtllm_engines.drafter_folder import write

OPSET = 18  # TensorRT 10's parser reads it; newer ones bring operators that it may not have
EXAMPLE = {SEQUENCES: 3, ROWS: 5, CONTEXT: 7, CHUNK: 4}  # sizes to trace with: distinct, and above one


def export(graph: Graph, file: Path, dtype: torch.dtype) -> None:
    """Write one graph. Its weights lie beside it where they are too large for the file itself."""
    inputs, outputs = graph.contract.inputs, graph.contract.outputs
    examples = tuple(_example(port, dtype) for port in inputs)
    with torch.inference_mode():
        program = torch.onnx.export(
            graph.module.to(dtype).eval(),
            examples,
            dynamo=True,
            input_names=[port.name for port in inputs],
            output_names=[port.name for port in outputs],
            dynamic_shapes=_dynamic(graph),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None  # without a file it is returned
    program.save(str(file), external_data=_bytes(graph, dtype) > 1 << 30)


def _example(port: Port, dtype: torch.dtype) -> Tensor:
    shape = [EXAMPLE[size] if isinstance(size, str) else size for size in port.shape]
    return torch.ones(shape, dtype=torch.int64) if port.integer else torch.zeros(shape, dtype=dtype)


def _dynamic(graph: Graph) -> Any:
    """As torch.export wants it: by position, and once more inside where forward takes *inputs."""
    sizes = {name: Dim(name, min=1) for name in EXAMPLE}
    each = tuple(
        {axis: sizes[size] for axis, size in enumerate(port.shape) if isinstance(size, str)}
        for port in graph.contract.inputs
    )
    return (each,) if isinstance(graph.module, Lent) else each


def _bytes(graph: Graph, dtype: torch.dtype) -> int:
    return sum(parameter.numel() for parameter in graph.module.parameters()) * dtype.itemsize


def export_all(trained: Path, checkpoint: Path, output: Path, dtype: str) -> list[Path]:
    """Write every graph of a trained drafter, and what else engines need. Raises CheckpointError as `load` does."""
    network = load(trained, checkpoint).eval()
    output.mkdir(parents=True, exist_ok=True)
    write(output, network, trained, dtype)
    files = []
    for graph in graphs(network):
        files.append(output / f"{graph.name}.onnx")
        export(graph, files[-1], getattr(torch, dtype))
    return files


def main(
    drafter: Annotated[Path, typer.Option(help="Folder of the trained drafter.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder of the target that it was trained for.")],
    output: Annotated[Path, typer.Option(help="Folder for the graphs: engines/TARGET/onnx/DRAFTER.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 for engines, float32 to compare.")] = "bfloat16",
) -> None:
    """Write every graph of a drafter."""
    try:
        for file in export_all(drafter, checkpoint, output, dtype):
            typer.echo(f"wrote {file}")
    except CheckpointError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
