"""What must be there before engines can be built: asked of the machine, all at once, before the first long step."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from trtllm_engines import cli
from trtllm_engines.build_drafter import BuildError, graphs
from trtllm_engines.commands import ROOT, Folders, Step
from trtllm_engines.pin import IMAGE, TENSORRT_LLM
from trtllm_engines.recipe import Recipe

CONTAINER = (
    'docker run --rm -it --gpus all --shm-size=2g -v "$PWD":/angelspec -w /angelspec -e PYTHONPATH=/angelspec '
    f"{IMAGE} bash"
)


class Machine(Protocol):
    """The questions that are asked of a machine."""

    def tensorrt_llm(self) -> str:
        """Its version, "" where it is not installed."""
        ...

    def gpus(self) -> int: ...

    def help(self, command: Sequence[str]) -> str:
        """What a program prints with --help, "" where it cannot be started."""
        ...


class ThisMachine:
    """What is installed here; tests put another machine in its place."""

    def tensorrt_llm(self) -> str:
        if find_spec("tensorrt_llm") is None:
            return ""
        try:
            return version("tensorrt_llm")
        except PackageNotFoundError:
            return "of no known version"

    def gpus(self) -> int:
        import torch

        return torch.cuda.device_count()

    def help(self, command: Sequence[str]) -> str:
        try:
            run = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return run.stdout + run.stderr


def unfit_options(steps: Sequence[Step]) -> list[str]:
    """What the record of 1.2.1's options has against the steps."""
    return [complaint for step in steps if step.program for complaint in cli.complaints(step.program, step.arguments)]


def problems(recipe: Recipe, steps: Sequence[Step], folders: Folders, machine: Machine) -> list[str]:
    """Why the steps cannot run here, each with what to do; empty = they can."""
    release = machine.tensorrt_llm()
    if not release:
        return [
            f"There is no TensorRT-LLM here. Build in the container that ships {TENSORRT_LLM}, on the GPU that serves:"
            f"\n  {CONTAINER}\nand there, without make, `python3 -m build_scripts.engines --target {recipe.name}`. "
            "DRY_RUN=1 prints the steps on any machine."
        ]
    found = []
    if release != TENSORRT_LLM:
        found.append(f"TensorRT-LLM is {release}, the recipes are for {TENSORRT_LLM}: use {IMAGE}")
    if (count := machine.gpus()) < recipe.tensor_parallel:
        found.append(f"{count} GPUs are visible, {recipe.name} needs {recipe.tensor_parallel}: see docker run --gpus")
    scripts = [Path(step.command[1]) for step in steps if step.program.startswith("examples/")]
    absent = [script for script in scripts if not (ROOT / script).is_file()]
    found += [
        f"'{script}' is not there: `git clone --depth 1 -b v{TENSORRT_LLM} https://github.com/NVIDIA/TensorRT-LLM` and "
        "pass --examples TensorRT-LLM/examples"
        for script in absent
    ]
    if not absent:
        found += _unknown_options(steps, machine)
    for step in steps:
        if step.name in recipe.drafters:
            found += _missing_graphs(folders.onnx / step.name)
    return found


def _unknown_options(steps: Sequence[Step], machine: Machine) -> list[str]:
    """Options that the program itself does not mention in its --help, whatever the record says."""
    found = []
    for step in steps:
        if step.program:
            text = machine.help(step.command[: -len(step.arguments)])
            used = [argument for argument in step.arguments if argument.startswith("--")]
            unknown = [option for option in used if option not in cli.options_in_help(text)]
            if unknown:
                found.append(f"{step.program} does not know {', '.join(unknown)} here: is this {IMAGE}?")
    return found


def _missing_graphs(folder: Path) -> list[str]:
    try:
        graphs(folder)
    except BuildError as error:
        return [str(error)]
    return []
