"""Writes the configurations of the models that clients call, and the tables of docs/interface.md, from the one table
of inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from python_backend.coordinator.interface import INPUTS, OUTPUTS, Dims, Input, Output
from python_backend.settings import COMPATIBLE_MODELS, ROOT

REPOSITORY = ROOT / "model_repository"
PAGE = ROOT / "docs" / "interface.md"
COMMAND = "python -m build_scripts.write_configs"
COORDINATOR, TWIN = "angelspec", "angelspec_infer"
ENSEMBLE, ALIAS = COMPATIBLE_MODELS
# What the step of an ensemble leaves out. One that asked for every output could not be told from a client that names
# none, and would get no zeros for those that a response does not hold.
NOT_IN_ENSEMBLES = {"speculation"}


class Head(NamedTuple):
    """What a configuration says before its tensors, and after them."""

    about: str
    text: str
    tail: str


CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
WARM_UP = """
# The answer to this request waits for the start-up checks and the cost table: until then the model is not ready.
model_warmup [
  {
    name: "start-up"
    batch_size: 1
    inputs { key: "max_tokens" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
  }
]
"""
PYTHON = {
    COORDINATOR: Head(
        "The coordinator. Its inputs are those that clients of TensorRT-LLM's backend send, and more",
        'backend: "python"\nmax_batch_size: 1\nmodel_transaction_policy { decoupled: true }\n',
        CPU + WARM_UP,
    ),
    TWIN: Head(
        "The same for clients that expect exactly one response: plain /infer and unary gRPC. No batch axis",
        'backend: "python"\nmax_batch_size: 0\n',
        CPU,
    ),
    ALIAS: Head(
        "The coordinator by the name of TensorRT-LLM's BLS model. No ensemble, so that a client that leaves is noticed",
        'backend: "python"\nmax_batch_size: 1\nmodel_transaction_policy { decoupled: true }\n',
        CPU,
    ),
}


def files() -> dict[Path, str]:
    """Every file that this program writes, with its text."""
    configs = {name: _python(name) for name in PYTHON} | {ENSEMBLE: _ensemble(ENSEMBLE)}
    return {REPOSITORY / name / "config.pbtxt": text for name, text in configs.items()} | {PAGE: _page()}


def _python(name: str) -> str:
    head = PYTHON[name]
    return _config(name, head, OUTPUTS)


def _ensemble(name: str) -> str:
    """One step, the coordinator, under the name that clients of TensorRT-LLM's backend address."""
    outputs = [output for output in OUTPUTS if output.name not in NOT_IN_ENSEMBLES]
    maps = [
        *(f'    input_map {{ key: "{i.name}" value: "{i.name}" }}' for i in INPUTS),
        *(f'    output_map {{ key: "{o.name}" value: "{o.name}" }}' for o in outputs),
    ]
    step = [f'  step {{\n    model_name: "{COORDINATOR}"\n    model_version: -1', *maps, "  }"]
    head = Head(
        "The coordinator by the name that clients of TensorRT-LLM's backend address",
        'platform: "ensemble"\nmax_batch_size: 1\n',
        "\n".join(["ensemble_scheduling {", *step, "}\n"]),
    )
    return _config(name, head, outputs)


def _config(name: str, head: Head, outputs: Iterable[Output]) -> str:
    inputs = ",\n".join(f"  {{ {_tensor(i)} optional: true }}" for i in INPUTS)
    told = ",\n".join(f"  {{ {_tensor(o)} }}" for o in outputs)
    return (
        f"# {head.about}. docs/interface.md explains each tensor.\n# Written by `{COMMAND}`.\n"
        f'name: "{name}"\n{head.text}\ninput [\n{inputs}\n]\n\noutput [\n{told}\n]\n\n{head.tail}'
    )


def _tensor(tensor: Input | Output) -> str:
    dims = ", ".join(map(str, tensor.dims))
    return f'name: "{tensor.name}" data_type: TYPE_{tensor.type} dims: [ {dims} ]'


def _page() -> str:
    text = PAGE.read_text()
    inputs = _table(
        ("input", "type", "default", "meaning"),
        ((f"`{i.name}`", _type(i.type, i.dims), i.default, i.meaning) for i in INPUTS),
    )
    outputs = _table(("output", "type", "when"), ((f"`{o.name}`", _type(o.type, o.dims), o.when) for o in OUTPUTS))
    return _between(_between(text, "inputs", inputs), "outputs", outputs)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("|  |", "| |").replace("| --- ", "|---")


def _type(name: str, dims: Dims) -> str:
    return name if dims == (1,) else f"{name} [{', '.join('n' if d < 0 else str(d) for d in dims)}]"


def _between(text: str, name: str, table: str) -> str:
    """The page with the table between its two marks. Raises ValueError where it has no such marks."""
    begin, end = f"<!-- {name}: written by {COMMAND} -->\n", f"<!-- end of {name} -->\n"
    changed, found = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: begin + table + end, text, flags=re.S)
    if found != 1:
        raise ValueError(f"{PAGE} has {found} tables between '{begin.strip()}' and '{end.strip()}', expected 1")
    return changed


def main(check: Annotated[bool, typer.Option(help="only say whether the files are up to date")] = False) -> None:
    """Write model_repository/*/config.pbtxt of the models that clients call, and the tables of docs/interface.md."""
    for path, text in files().items():
        if check and (not path.exists() or path.read_text() != text):
            typer.echo(f"{path.relative_to(ROOT)} is out of date: run `{COMMAND}`", err=True)
            raise typer.Exit(1)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    typer.run(main)
