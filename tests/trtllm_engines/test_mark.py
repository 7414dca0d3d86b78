"""The two notes of the build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from trtllm_engines import mark, pin


def marked(tmp_path: Path, converted: dict[str, Any], source: dict[str, Any]) -> Any:
    """(exit code, the marked config.json, what was printed)."""
    for name, config in (("converted", converted), ("source", source)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    folders = ["--folder", str(tmp_path / "converted"), "--source", str(tmp_path / "source")]
    result = CliRunner().invoke(mark.app, ["checkpoint", *folders, "--layers", "1,9,36"])
    return result.exit_code, json.loads((tmp_path / "converted" / "config.json").read_text()), result.output


def test_captured_layers_get_into_the_checkpoints_config(tmp_path: Path) -> None:
    code, config, _ = marked(tmp_path, {"architecture": "Qwen3ForCausalLM"}, {"rope_theta": 1e6})
    assert code == 0
    assert config == {"architecture": "Qwen3ForCausalLM", pin.CAPTURED: [1, 9, 36]}


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("older", [True, False])
def test_experts_are_normalised_where_the_model_says_so(tmp_path: Path, normalised: bool, older: bool) -> None:
    """from_hugging_face of models/qwen/config.py writes NONE, whatever the model says."""
    converted = {"moe_num_experts": 8} if older else {"moe": {"num_experts": 8, "top_k": 2, "normalization_mode": 0}}
    _, config, _ = marked(tmp_path, converted, {"num_experts": 8, "norm_topk_prob": normalised})
    mode = config.get("moe_normalization_mode", 0) if older else config["moe"]["normalization_mode"]
    assert mode == int(normalised)


def test_a_rotary_base_that_the_containers_transformers_cannot_read_is_put_back(tmp_path: Path) -> None:
    source = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert marked(tmp_path, {"rotary_base": 10000.0}, source)[1]["rotary_base"] == 1e6


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8}}, "lost the positions' scaling"),
        ({"num_experts": 8, "norm_topk_prob": True}, "config.json neither 'moe' nor 'moe_num_experts'"),
    ],
)
def test_what_cannot_be_put_back_ends_the_build(tmp_path: Path, source: dict[str, Any], message: str) -> None:
    code, config, output = marked(tmp_path, {"rotary_base": 10000.0}, source)
    assert (code, config) == (1, {"rotary_base": 10000.0})
    assert message in output


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
