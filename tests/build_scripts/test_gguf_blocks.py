"""Codes read from a GGUF file mean what the gguf library says they mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from build_scripts import gguf_blocks
from build_scripts.fetch_model import source_file
from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.checkpoints.decoder import read_config

QUANTISED = {"q4_1": gguf.GGMLQuantizationType.Q4_1, "q8_0": gguf.GGMLQuantizationType.Q8_0}


@pytest.mark.parametrize("kind", QUANTISED)
def test_blocks_are_what_the_library_dequantises(kind: str) -> None:
    matrix = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32)
    matrix[2, 32:64] = -0.375  # a flat block, whose scale is 0 in Q4_1
    matrix[3, :32] = 0
    data = gguf.quantize(matrix, QUANTISED[kind])
    blocks = getattr(gguf_blocks, kind)(data)
    expected = gguf.dequantize(data, QUANTISED[kind])
    np.testing.assert_allclose(blocks.dense(), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(blocks.dense()[2, 32:64], expected[2, 32:64])


def test_another_architecture_is_refused(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def __init__(self, file: Path) -> None:
            self.fields: dict[str, Any] = {"general.architecture": SimpleNamespace(contents=lambda: "mamba")}

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    with pytest.raises(CheckpointError, match="holds a 'mamba' model; supported in this format: llama"):
        gguf_blocks.read_gguf(Path("x.gguf"), read_config(embedded))


def test_another_type_is_refused_by_name(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gguf.GGUFReader(source_file())
    tensor = SimpleNamespace(name="blk.0.attn_q.weight", tensor_type=gguf.GGMLQuantizationType.Q6_K)
    monkeypatch.setattr(gguf, "GGUFReader", lambda file: SimpleNamespace(fields=real.fields, tensors=[tensor]))
    with pytest.raises(CheckpointError, match=r"stores 'blk\.0\.attn_q\.weight' as Q6_K; supported: F32, Q4_1, Q8_0"):
        gguf_blocks.read_gguf(Path("x.gguf"), read_config(embedded))
