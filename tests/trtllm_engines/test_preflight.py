"""A machine that cannot build is told so before the first step, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtllm_engines import cli
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import Folders, Step, steps
from trtllm_engines.pin import DRAFTER_TABLE, IMAGE
from trtllm_engines.preflight import ThisMachine, problems

RECIPE = recipes.load("qwen3-8b")


@dataclass
class FakeMachine:
    release: str = "1.2.1"
    count: int = 1
    hidden: str = ""  # an option that no --help mentions

    def tensorrt_llm(self) -> str:
        return self.release

    def gpus(self) -> int:
        return self.count

    def help(self, command: Sequence[str]) -> str:
        options = [option for program in cli.record().values() for option in program.options]
        return " ".join(option for option in options if option != self.hidden)


@pytest.fixture
def ready(tmp_path: Path) -> tuple[list[Step], Folders]:
    """Steps whose scripts and graphs are there."""
    folders = Folders.under(tmp_path / "work", RECIPE, "bf16", tmp_path / "examples")
    script = tmp_path / "examples/models/core/qwen/convert_checkpoint.py"
    graphs = [folders.onnx / name / "block.onnx" for name in RECIPE.drafters]
    for file in (script, *graphs, *(graph.with_name(DRAFTER_TABLE) for graph in graphs)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return steps(RECIPE, "bf16", folders), folders


def test_the_right_container_on_the_right_machine_has_no_problems(ready: tuple[list[Step], Folders]) -> None:
    assert problems(RECIPE, *ready, FakeMachine()) == []


def test_a_machine_without_tensorrt_llm_is_told_which_container_to_start(ready: tuple[list[Step], Folders]) -> None:
    (problem,) = problems(RECIPE, *ready, FakeMachine(release=""))
    assert "There is no TensorRT-LLM here" in problem
    assert 'docker run --rm -it --gpus all --shm-size=2g -v "$PWD":/angelspec' in problem
    assert IMAGE in problem
    assert "DRY_RUN=1" in problem


def test_this_machine_is_such_a_machine() -> None:
    assert ThisMachine().tensorrt_llm() == ""
    assert ThisMachine().help(["no-such-program"]) == ""
    assert "usage" in ThisMachine().help(["python3"])


@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        (FakeMachine(release="1.1.0"), "TensorRT-LLM is 1.1.0, the recipes are for 1.2.1"),
        (FakeMachine(count=0), "0 GPUs are visible, qwen3-8b needs 1"),
        (FakeMachine(hidden="--use_paged_context_fmha"), "trtllm-build does not know --use_paged_context_fmha here"),
        (FakeMachine(hidden="--local-dir"), "hf download does not know --local-dir here"),
    ],
)
def test_each_problem_is_named(ready: tuple[list[Step], Folders], machine: FakeMachine, problem: str) -> None:
    (found,) = problems(RECIPE, *ready, machine)
    assert problem in found


def test_a_missing_script_says_where_to_get_it(ready: tuple[list[Step], Folders], tmp_path: Path) -> None:
    (tmp_path / "examples/models/core/qwen/convert_checkpoint.py").unlink()
    (found,) = problems(RECIPE, *ready, FakeMachine())
    assert "git clone --depth 1 -b v1.2.1" in found


def test_missing_graphs_name_the_folder_and_the_way_without(ready: tuple[list[Step], Folders]) -> None:
    planned, folders = ready
    (folders.onnx / "drafter_dfly" / "block.onnx").unlink()
    (folders.onnx / "drafter_mtp" / DRAFTER_TABLE).unlink()
    found, table = sorted(problems(RECIPE, planned, folders, FakeMachine()))
    assert f"drafter_mtp' holds no {DRAFTER_TABLE}" in table
    assert "drafter_dfly' holds no *.onnx graph" in found
    assert "--no-drafters" in found
