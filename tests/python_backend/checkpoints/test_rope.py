"""Rotary frequencies are the same from a configuration file of either release of transformers, under either release."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.checkpoints.decoder import read_config
from python_backend.checkpoints.rope import rope, rope_parameters

SHAPE = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": LLAMA3,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 256},
}
THETA = 500_000.0


def written(folder: Path, **values: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SHAPE, **values}))
    return folder


@pytest.mark.parametrize("kind", SCALINGS)
def test_both_shapes_of_a_file_give_the_same_frequencies(kind: str, tmp_path: Path) -> None:
    scaling = {"rope_type": kind, **SCALINGS[kind]}
    old = read_config(
        written(tmp_path / "4", rope_theta=THETA, **({"rope_scaling": scaling} if kind != "default" else {}))
    )
    new = read_config(written(tmp_path / "5", rope_parameters={**scaling, "rope_theta": THETA}))
    torch.testing.assert_close(new.rope_frequencies, old.rope_frequencies, rtol=0, atol=0)
    assert new.rope_scale == old.rope_scale
    plain = 1 / THETA ** (torch.arange(0, 16, 2) / 16)
    assert torch.allclose(old.rope_frequencies, plain) == (kind == "default")


def test_the_oldest_name_of_the_type_is_understood(tmp_path: Path) -> None:
    folder = written(tmp_path / "old", rope_theta=THETA, rope_scaling={"type": "linear", "factor": 4.0})
    plain = 1 / THETA ** (torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(read_config(folder).rope_frequencies, plain / 4)


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(rope_theta=THETA, rope_scaling=None),  # as 4.57 reads its own file
        SimpleNamespace(
            rope_theta=1e4, rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": THETA}
        ),
        SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": THETA}),  # as 5 does
    ],
    ids=["4 of 4", "4 of 5", "5"],
)
def test_attributes_of_either_release_are_read(config: SimpleNamespace) -> None:
    assert rope_parameters(config)["rope_theta"] == THETA
    frequencies, scale = rope(config, 16)
    torch.testing.assert_close(frequencies, 1 / THETA ** (torch.arange(0, 16, 2) / 16))
    assert scale == 1.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"full_attention": {"rope_type": "default"}}, r"differ between types of layers \(full_attention\)"),
        ({"rope_type": "dynamic", "rope_theta": 1e4}, "rope type is 'dynamic'"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_is_not_supported_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rope(SimpleNamespace(rope_parameters=parameters), 16)
