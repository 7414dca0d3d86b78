"""`make engines` prints what it would run, refuses where it cannot, and goes on where it stopped."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from build_scripts import engines
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import Folders, Step, steps

BUILDABLE = [name for name in recipes.names() if not recipes.load(name).missing]


@pytest.mark.parametrize("target", BUILDABLE)
def test_a_dry_run_prints_every_step_as_a_shell_would_take_it(target: str, tmp_path: Path) -> None:
    result = run("--target", target, "--dry-run", "--work", str(tmp_path))
    assert result.exit_code == 0
    recipe = recipes.load(target)
    precision = recipe.chosen("")
    folders = Folders.under(tmp_path, recipe, precision, Path("/app/examples"))
    parts = re.split(r"^#.*$", result.output, flags=re.MULTILINE)
    printed = [shlex.split(part.replace("\\\n", "")) for part in parts if part.strip()]
    assert printed == [list(step.command) for step in steps(recipe, precision, folders)]


def test_a_dry_run_needs_no_gpu_and_leaves_nothing_behind(tmp_path: Path) -> None:
    run("--target", "qwen3-8b", "--dry-run", "--work", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_without_the_container_it_refuses(tmp_path: Path) -> None:
    result = run("--target", "qwen3-8b", "--work", str(tmp_path))
    assert result.exit_code == 1
    assert "There is no TensorRT-LLM here" in result.output
    assert list(tmp_path.iterdir()) == []


def test_hy3_is_refused_with_what_is_missing() -> None:
    result = run("--target", "hy3", "--dry-run")
    assert result.exit_code == 1
    assert "hy3 cannot be built" in result.output
    assert "MODEL_MAP" in result.output


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Three steps that write their name; a step fails while a file of its name with `.fail` is there."""
    log = tmp_path / "log"

    def step(name: str) -> Step:
        script = f'echo {name} >> "{log}"; test ! -e "{tmp_path / name}.fail"'
        return Step(name, "for a test", ("sh", "-c", script), "", ())

    monkeypatch.setattr(engines, "steps", lambda *_: [step("one"), step("two"), step("three")])
    monkeypatch.setattr(engines, "problems", lambda *_: [])

    class Log(list[str]):
        def __eq__(self, other: object) -> bool:
            return (log.read_text().split() if log.is_file() else []) == other

        __hash__ = None  # type: ignore[assignment]

    return Log()


def test_a_second_run_goes_on_where_the_first_stopped(ran: list[str], tmp_path: Path) -> None:
    (tmp_path / "two.fail").touch()
    first = run("--target", "qwen3-8b", "--work", str(tmp_path))
    assert first.exit_code == 1
    assert "step two ended with code 1" in first.output
    (tmp_path / "two.fail").unlink()
    assert run("--target", "qwen3-8b", "--work", str(tmp_path)).exit_code == 0
    assert ran == ["one", "two", "two", "three"]


def test_what_has_run_is_not_run_again_unless_forced(ran: list[str], tmp_path: Path) -> None:
    for extra in ([], [], ["--force"]):
        assert run("--target", "qwen3-8b", "--work", str(tmp_path), *extra).exit_code == 0
    assert ran == ["one", "two", "three"] * 2


def test_a_changed_step_runs_again_with_all_after_it(ran: list[str], tmp_path: Path) -> None:
    run("--target", "qwen3-8b", "--work", str(tmp_path))
    record = tmp_path / "qwen3-8b-bf16" / engines.DONE
    done = json.loads(record.read_text())
    record.write_text(json.dumps({**done, "two": "another command line"}))
    run("--target", "qwen3-8b", "--work", str(tmp_path))
    assert ran == ["one", "two", "three", "two", "three"]


def run(*arguments: str):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(engines.main)
    return CliRunner().invoke(app, list(arguments))
