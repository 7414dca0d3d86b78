"""TensorRT engines from a drafter's ONNX graphs, built inside the TensorRT-LLM container.

The dynamic dimensions of a graph carry names, and the name alone says the range it is built for:

    sequences   drafting sequences of a step, 1 to B
    rows        packed context rows that a step appends, 1 to R
    chunk       context rows of one sequence in one call, 1 to 16; longer prompts take several
    context     rows of memory that a sequence has for its context, 1 to the longest sequence

Types are taken as the graph has them (a strongly typed network), so its bfloat16 stays bfloat16. Not run on hardware
yet: TensorRT exists in the container only.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    import tensorrt as trt

CHUNK = 16
WORKSPACE_BYTES = 4 << 30  # for TensorRT's tactics while it builds and runs one graph


class Range(NamedTuple):
    """Smallest, most frequent and largest size of a dynamic dimension."""

    least: int
    usual: int
    most: int


class BuildError(RuntimeError):
    """TensorRT did not take a graph; the message has its reason."""


def ranges(sequences: int, rows: int, context: int) -> dict[str, Range]:
    """By dimension name. Usual: half the batch, a few committed rows of each sequence, a quarter of the longest."""
    usual = max(1, sequences // 2)
    return {
        "sequences": Range(1, usual, sequences),
        "rows": Range(1, min(rows, 4 * usual), rows),
        "chunk": Range(1, 4, CHUNK),
        "context": Range(1, max(1, context // 4), context),
    }


def build(graph: Path, sizes: dict[str, Range], library: ModuleType) -> bytes:
    """A serialised engine of one graph. library: the `tensorrt` module. Raises BuildError."""
    logger = library.Logger(library.Logger.WARNING)
    builder = library.Builder(logger)
    network = builder.create_network(1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = library.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        reasons = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
        raise BuildError(f"TensorRT cannot read '{graph}': {reasons}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    config.add_optimization_profile(_profile(builder, network, sizes, graph))
    serialised = builder.build_serialized_network(network, config)
    if serialised is None:
        raise BuildError(f"TensorRT cannot build '{graph}'; its log above has the reason")
    return bytes(serialised)


def _profile(
    builder: trt.Builder, network: trt.INetworkDefinition, sizes: dict[str, Range], graph: Path
) -> trt.IOptimizationProfile:
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        dimensions = []
        for axis, size in enumerate(tensor.shape):
            name = tensor.get_dimension_name(axis)
            if size >= 0:
                dimensions.append(Range(size, size, size))
            elif name in sizes:
                dimensions.append(sizes[name])
            else:
                raise BuildError(
                    f"'{graph}', input {tensor.name}, axis {axis}: dynamic dimension '{name}' is unknown, "
                    f"expected one of {', '.join(sizes)}: export the graph again"
                )
        least, usual, most = zip(*dimensions, strict=True) if dimensions else ((), (), ())
        profile.set_shape(tensor.name, least, usual, most)
    return profile


def graphs(folder: Path) -> list[Path]:
    """The graphs of a drafter, by name. Raises BuildError where there is none."""
    found = sorted(folder.glob("*.onnx"))
    if not found:
        raise BuildError(
            f"'{folder}' holds no *.onnx graph: train the drafter for this target and export it there, or build "
            "without drafters (`make engines ARGS=--no-drafters`) and serve with prompt lookup"
        )
    return found


def main(
    onnx: Annotated[Path, typer.Option(help="Folder with the drafter's graphs.")],
    output: Annotated[Path, typer.Option(help="Folder for the engines, named as the graphs.")],
    sequences: Annotated[int, typer.Option(min=1, help="Largest batch.")],
    rows: Annotated[int, typer.Option(min=1, help="Most context rows of a step.")],
    context: Annotated[int, typer.Option(min=1, help="Longest sequence.")],
) -> None:
    """Build an engine from every graph."""
    try:
        import tensorrt

        output.mkdir(parents=True, exist_ok=True)
        for graph in graphs(onnx):
            engine = output / f"{graph.stem}.engine"
            engine.write_bytes(build(graph, ranges(sequences, rows, context), tensorrt))
            typer.echo(f"built {engine}")
    except ImportError as error:
        typer.echo(f"error: there is no TensorRT here ({error}): run this inside its container", err=True)
        raise typer.Exit(1) from error
    except BuildError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
