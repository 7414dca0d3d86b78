"""The two notes of the build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from trtllm_engines import mark, pin


def test_captured_layers_get_into_the_checkpoints_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "Qwen3ForCausalLM"}')
    result = CliRunner().invoke(mark.app, ["checkpoint", "--folder", str(tmp_path), "--layers", "1,9,36"])
    assert result.exit_code == 0
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "architecture": "Qwen3ForCausalLM",
        pin.CAPTURED: [1, 9, 36],
    }


def test_the_stamp_says_on_what_an_engine_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H20")
    monkeypatch.setattr(mark, "version", lambda package: f"{package} 10.14.1")
    options = ["--folder", str(tmp_path), "--target", "qwen3-8b", "--precision", "bf16"]
    assert CliRunner().invoke(mark.app, ["engine", *options]).exit_code == 0
    assert json.loads((tmp_path / pin.STAMP).read_text()) == {
        "target": "qwen3-8b",
        "precision": "bf16",
        "sm": 90,
        "gpu": "NVIDIA H20",
        "tensorrt": "tensorrt 10.14.1",
    }
