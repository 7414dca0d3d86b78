"""`make serve ENGINE=tensorrt_llm` starts what `make engines` built, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from build_scripts import serve_engines
from trtllm_engines import pin, validate

RECORDED = Path(__file__).parent.parent / "trtllm_engines" / "engine_config.json"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `make engines TARGET=qwen3-8b` leaves it on an H20, but for the engine itself."""
    target = tmp_path / "qwen3-8b-bf16" / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(RECORDED.read_text())
    (target / pin.STAMP).write_text(json.dumps({"target": "qwen3-8b", "sm": 90}))
    (target / "rank0.engine").touch()
    (tmp_path / "qwen3-8b-bf16" / "angelspec.yaml").touch()
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/bin/{name}")
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: calls.append(call))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    return calls


def test_it_becomes_tritonserver_with_the_settings_of_the_engines(built: Path, started: list[Any]) -> None:
    assert run(built, "--http-port", "9000").exit_code == 0
    ((program, command, environment),) = started
    assert program == "tritonserver"
    assert command[1:3] == ["--model-repository=model_repository", "--http-port=9000"]
    assert environment["ANGELSPEC_SETTINGS"] == str(built / "qwen3-8b-bf16" / "angelspec.yaml")


def test_an_engine_that_does_not_fit_is_not_served(built: Path, started: list[Any]) -> None:
    file = built / "qwen3-8b-bf16" / "target" / "config.json"
    config = json.loads(file.read_text())
    config["build_config"]["max_num_tokens"] = 512
    file.write_text(json.dumps(config))
    result = run(built)
    assert (result.exit_code, started) == (1, [])
    assert "2048 or more" in result.output


def test_another_gpu_is_not_served(built: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_engines, "serving_sm", lambda: 100)
    assert validate.serving_sm() == pin.SM  # no GPU here: the check is against H20
    result = run(built)
    assert (result.exit_code, started) == (1, [])


def test_without_engines_it_says_how_to_get_them(tmp_path: Path, started: list[Any]) -> None:
    result = run(tmp_path)
    assert (result.exit_code, started) == (1, [])
    assert "run `make engines TARGET=qwen3-8b` first" in result.output


def test_without_tritonserver_it_points_to_the_container(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = run(built)
    assert result.exit_code == 1
    assert "docs/h20.md" in result.output


def test_a_dry_run_prints_the_command_without_engines(tmp_path: Path, started: list[Any]) -> None:
    result = run(tmp_path, "--dry-run")
    assert (result.exit_code, started) == (0, [])
    assert f"ANGELSPEC_SETTINGS={tmp_path}/qwen3-8b-bf16/angelspec.yaml" in result.output
    assert "tritonserver --model-repository=model_repository" in result.output


def run(work: Path, *arguments: str):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(serve_engines.main)
    return CliRunner().invoke(app, ["--target", "qwen3-8b", "--work", str(work), *arguments])
