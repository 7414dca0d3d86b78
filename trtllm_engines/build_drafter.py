"""TensorRT engines from a drafter's ONNX graphs, built inside the TensorRT-LLM container.

The dynamic dimensions of a graph carry names, and the name alone says the range it is built for:

    sequences   drafting sequences of a step, 1 to B
    rows        packed context rows that a step appends, 1 to R
    chunk       context rows of a sequence in one call, 1 to 16; prompts go one by one, 256 rows at a time
    context     rows of memory that a sequence has for its context, 1 to the longest sequence, its drafts and one

Types are taken as the graph has them (a strongly typed network), so its bfloat16 stays bfloat16. Not run on hardware
yet: TensorRT exists in the container only.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trtllm_engines.pin import BESIDE_GRAPHS, CHUNK, DRAFTER_TABLE, LONG_CHUNK

if TYPE_CHECKING:
    import tensorrt as trt

WORKSPACE_BYTES = 4 << 30  # for TensorRT's tactics while it builds and runs one graph


class Range(NamedTuple):
    """Smallest, most frequent and largest size of a dynamic dimension."""

    least: int
    usual: int
    most: int


class BuildError(RuntimeError):
    """TensorRT did not take a graph; the message has its reason."""


Ranges = dict[str, Range]  # by dimension name


def ranges(sequences: int, rows: int, context: int) -> tuple[Ranges, Ranges]:
    """Of a step, and of a prompt, which one sequence appends alone: the other profile of graphs that have chunks.

    Usual: half the batch, a few committed rows of each sequence, a quarter of the longest.
    """
    usual = max(1, sequences // 2)
    step = {
        "sequences": Range(1, usual, sequences),
        "rows": Range(1, min(rows, 4 * usual), rows),
        "chunk": Range(1, 4, CHUNK),
        "context": Range(1, max(1, context // 4), context),
    }
    return step, step | {"sequences": Range(1, 1, 1), "chunk": Range(1, LONG_CHUNK, LONG_CHUNK)}


def build(graph: Path, sizes: tuple[Ranges, Ranges], library: ModuleType) -> bytes:
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
    for profile in sizes if _has_chunks(network) else sizes[:1]:
        config.add_optimization_profile(_profile(builder, network, profile, graph))
    serialised = builder.build_serialized_network(network, config)
    if serialised is None:
        raise BuildError(f"TensorRT cannot build '{graph}'; its log above has the reason")
    return bytes(serialised)


def _has_chunks(network: trt.INetworkDefinition) -> bool:
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    return any(tensor.get_dimension_name(axis) == "chunk" for tensor in tensors for axis in range(len(tensor.shape)))


def _profile(
    builder: trt.Builder, network: trt.INetworkDefinition, sizes: Ranges, graph: Path
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
    """The graphs of a drafter, by name. Raises BuildError where there is none, or not what lies beside them."""
    found = sorted(folder.glob("*.onnx"))
    if not found:
        raise BuildError(
            f"'{folder}' holds no *.onnx graph: train the drafter for this target and export it there, or build "
            "without drafters (`make engines ARGS=--no-drafters`) and serve with prompt lookup"
        )
    if not (folder / DRAFTER_TABLE).is_file():
        raise BuildError(
            f"'{folder}' holds no {DRAFTER_TABLE}, which engines are served with: export the drafter again"
        )
    return found


def copy_table(graphs: Path, engines: Path) -> None:
    """What a runtime needs beside the engines."""
    for name in BESIDE_GRAPHS:
        if (graphs / name).is_file():
            shutil.copy(graphs / name, engines / name)


def main(
    onnx: Annotated[Path, typer.Option(help="Folder with the drafter's graphs.")],
    output: Annotated[Path, typer.Option(help="Folder for the engines, named as the graphs.")],
    sequences: Annotated[int, typer.Option(min=1, help="Largest batch.")],
    rows: Annotated[int, typer.Option(min=1, help="Most context rows of a step.")],
    context: Annotated[int, typer.Option(min=1, help="Longest sequence, its drafts and one more.")],
) -> None:
    """Build an engine from every graph."""
    try:
        import tensorrt

        output.mkdir(parents=True, exist_ok=True)
        for graph in graphs(onnx):
            engine = output / f"{graph.stem}.engine"
            engine.write_bytes(build(graph, ranges(sequences, rows, context), tensorrt))
            typer.echo(f"built {engine}")
        copy_table(onnx, output)
    except ImportError as error:
        typer.echo(f"error: there is no TensorRT here ({error}): run this inside its container", err=True)
        raise typer.Exit(1) from error
    except BuildError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
