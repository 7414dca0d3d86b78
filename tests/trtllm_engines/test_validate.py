"""An engine that is not what its recipe says is found out, each time with what to rebuild.

engine_config.json has the shape that tensorrt_llm/builder.py (EngineConfig.to_dict) writes for the build command of
qwen3-8b; it was put together from that source, since no engine has been built yet.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from trtllm_engines import pin, validate
from trtllm_engines import recipe as recipes
from trtllm_engines.validate import mismatches

CONFIG: dict[str, Any] = json.loads((Path(__file__).parent / "engine_config.json").read_text())
STAMP = {"target": "qwen3-8b", "precision": "bf16", "sm": 90, "gpu": "NVIDIA H20", "tensorrt": "10.14.1"}
QWEN = recipes.load("qwen3-8b")
PLUGINS = "build_config/plugin_config"


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *parents, key = path.split("/")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[key] = value
    return config


def test_the_engine_of_the_build_command_fits() -> None:
    assert mismatches(CONFIG, STAMP, QWEN, "bf16", 90) == []


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("version", "1.1.0", "TensorRT-LLM"),
        ("pretrained_config/dtype", "float16", "dtype"),
        ("pretrained_config/logits_dtype", "float16", "logits"),
        ("pretrained_config/vocab_size", 152064, "vocabulary"),
        ("pretrained_config/hidden_size", 5120, "hidden size"),
        ("pretrained_config/num_hidden_layers", 40, "layers"),
        ("pretrained_config/captured_layers", [1, 9], "captured layers"),
        ("pretrained_config/mapping/tp_size", 2, "GPUs"),
        ("pretrained_config/quantization/quant_algo", "FP8", "weights"),
        ("pretrained_config/quantization/kv_cache_quant_algo", "FP8", "KV cache"),
        (f"{PLUGINS}/use_paged_context_fmha", False, "paged context FMHA"),
        (f"{PLUGINS}/remove_input_padding", False, "packed rows"),
        (f"{PLUGINS}/paged_kv_cache", False, "paged KV cache"),
        (f"{PLUGINS}/tokens_per_block", 64, "tokens a block"),
        (f"{PLUGINS}/reduce_fusion", True, "fused residuals"),
        ("build_config/max_batch_size", 32, "sequences"),
        ("build_config/max_seq_len", 4096, "length"),
        ("build_config/max_num_tokens", 1024, "rows"),
        ("build_config/max_draft_len", 3, "draft length"),
    ],
)
def test_each_difference_is_named_with_its_remedy(path: str, value: Any, what: str) -> None:
    (found,) = mismatches(changed(path, value), STAMP, QWEN, "bf16", 90)
    assert (found.what, found.engine) == (what, str(value))
    assert "python3 -m build_scripts.engines --target qwen3-8b --precision bf16 --force" in found.remedy


def test_an_engine_without_captured_layers_is_found_out() -> None:
    config = copy.deepcopy(CONFIG)
    del config["pretrained_config"][pin.CAPTURED]
    assert [found.what for found in mismatches(config, STAMP, QWEN, "bf16", 90)] == ["captured layers"]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("normalization_mode", 0, "experts' weights normalised"),  # what the conversion writes by itself
        ("num_experts", 64, "experts"),
        ("top_k", 4, "experts of a token"),
    ],
)
def test_a_mixture_of_experts_is_compared(key: str, value: int, what: str) -> None:
    recipe = recipes.load("qwen3-30b-a3b")
    moe = {"num_experts": 128, "top_k": 8, "normalization_mode": 1}
    names = {found.what for found in mismatches(changed("pretrained_config/moe", moe), STAMP, recipe, "bf16", 90)}
    assert not names & {"experts", "experts of a token", "experts' weights normalised"}
    wrong = mismatches(changed("pretrained_config/moe", {**moe, key: value}), STAMP, recipe, "bf16", 90)
    assert {found.what for found in wrong} - names == {what}


def test_an_engine_of_another_gpu_is_to_be_rebuilt_on_this_one() -> None:
    (found,) = mismatches(CONFIG, STAMP, QWEN, "bf16", 100)
    assert found[:3] == ("SM", "90", "100")
    assert found.remedy.startswith("on this GPU: ")


def test_a_larger_engine_than_asked_for_fits() -> None:
    assert mismatches(changed("build_config/max_batch_size", 128), STAMP, QWEN, "bf16", 90) == []


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    (path / pin.STAMP).write_text(json.dumps(STAMP))
    (path / "rank0.engine").write_bytes(b"")
    return path


@pytest.mark.parametrize("missing", ["config.json", pin.STAMP, "rank0.engine"])
def test_an_incomplete_folder_is_named(tmp_path: Path, missing: str) -> None:
    (folder_of(tmp_path, CONFIG) / missing).unlink()
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"has no {missing}: run `make engines`" in " ".join(result.output.split())


def test_the_program_says_that_it_fits_or_what_to_rebuild(tmp_path: Path) -> None:
    fits = run(folder_of(tmp_path, CONFIG))
    assert (fits.exit_code, fits.output) == (0, "fits qwen3-8b, bf16\n")
    differs = run(folder_of(tmp_path, changed("build_config/max_draft_len", 3)))
    assert differs.exit_code == 1
    assert "draft length" in differs.output


def test_a_config_of_something_else_is_refused(tmp_path: Path) -> None:
    result = run(folder_of(tmp_path, {"version": "1.2.1", "builder_config": {}}))
    assert result.exit_code == 1
    assert "not an engine of 1.2.1" in " ".join(result.output.split())


def run(folder: Path):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(validate.main)
    return CliRunner().invoke(app, ["--target", "qwen3-8b", "--folder", str(folder)])
