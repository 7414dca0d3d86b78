"""Checkpoints are found, checked and identified, or refused with what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from python_backend.assembly.engines import build_target
from python_backend.checkpoints.checkpoint import (
    RECORD,
    CheckpointError,
    hash_weights,
    resolve_checkpoint,
    weights_sha256,
)
from python_backend.checkpoints.decoder import read_config
from python_backend.settings import CoordinatorSettings, Settings, TargetSettings
from tests.support.checkpoints import load_engine


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy", ignore=shutil.ignore_patterns(RECORD)))


def settings_for(checkpoint: str, cache: Path) -> Settings:
    return Settings(
        target=TargetSettings(checkpoint=checkpoint), coordinator=CoordinatorSettings(max_length=64), cache_dir=cache
    )


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_weights(folder: Path, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
    file = folder / "model.safetensors"
    kept = {name: tensor.clone() for name, tensor in load_file(file).items() if name not in remove}
    save_file(kept | {name: torch.zeros(1) for name in add}, file)


def test_the_embedded_name_means_a_folder_in_the_cache(tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "models" / "smollm2-135m")
    assert resolve_checkpoint(settings_for("smollm2-135m", tmp_path)) == tmp_path / "models" / "smollm2-135m"


def test_a_missing_embedded_model_says_to_run_setup(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'smollm2-135m'.*run `make setup`"):
        resolve_checkpoint(settings_for("smollm2-135m", tmp_path))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"./nowhere. holds no config\.json"):
        resolve_checkpoint(settings_for("/nowhere", tmp_path))


def test_any_folder_serves_as_target(folder: Path, tmp_path: Path) -> None:
    description = build_target(settings_for(str(folder), tmp_path)).describe()
    assert (description.vocabulary_size, description.weights_sha256) == (300, hash_weights(folder))


def test_the_checksum_is_recorded_and_read_back(folder: Path) -> None:
    digest = weights_sha256(folder)
    assert digest == hash_weights(folder)
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**record, "sha256": "as recorded"}))
    assert weights_sha256(folder) == "as recorded"


def test_a_checksum_of_other_files_is_not_believed(folder: Path) -> None:
    before = weights_sha256(folder)
    change_weights(folder, add=("one.more",))
    assert weights_sha256(folder) == hash_weights(folder) != before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gpt2"}, "a 'gpt2' model; supported: llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "activation 'gelu'; supported: silu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type is 'dynamic'"),
    ],
)
def test_an_unsupported_model_is_refused(folder: Path, values: dict[str, object], message: str) -> None:
    change_config(folder, **values)
    with pytest.raises(CheckpointError, match=message):
        read_config(folder)


def test_sliding_windows_are_refused(folder: Path) -> None:
    change_config(folder, model_type="qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=1)
    with pytest.raises(CheckpointError, match="sliding-window"):
        read_config(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, remove=("model.layers.1.mlp.up_proj.weight",))
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_engine(folder)


def test_a_tensor_that_no_layer_uses_is_named(folder: Path) -> None:
    change_weights(folder, add=("model.layers.0.self_attn.sinks",))
    with pytest.raises(CheckpointError, match=r"1 tensors that are not used, as 'model\.layers\.0\.self_attn\.sinks'"):
        load_engine(folder)


def test_a_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        load_engine(folder)
