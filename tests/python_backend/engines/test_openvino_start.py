"""The engine refuses to serve weights, releases and processors that would not give the reference's logits."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from python_backend.checkpoints import quantised
from python_backend.checkpoints.checkpoint import RECORD, CheckpointError
from python_backend.checkpoints.quantised import Blocks, Weight
from python_backend.engine import EngineError
from python_backend.engines import openvino_engine, self_check
from python_backend.engines.openvino_weights import Weights, read_weights, to_int8
from tests.support.checkpoints import save_tiny
from tests.support.openvino_targets import load_openvino


def test_one_changed_weight_is_refused_with_both_logits(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_openvino(tiny_llama)

    def changed(folder: Path, mode: str) -> dict[str, Weight]:
        weights = read_weights(folder, "exact")
        matrix = weights["model.layers.1.mlp.down_proj.weight"]
        assert not isinstance(matrix, Blocks)
        weights["model.layers.1.mlp.down_proj.weight"] = matrix.copy()
        weights["model.layers.1.mlp.down_proj.weight"][7, 5] += 0.5
        return weights

    monkeypatch.setattr(openvino_engine, "read_weights", changed)
    with pytest.raises(EngineError, match=r"logit of token \d+ after \d+ tokens is \S+, the reference says \S+, limit"):
        load_openvino(tiny_llama)


def test_the_reference_is_of_these_weights_and_made_once(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny("qwen3", tmp_path)
    load_openvino(folder)
    kept = json.loads((folder / self_check.FILE).read_text())
    (folder / self_check.FILE).write_text(json.dumps({**kept, "sha256": "other weights"}))
    load_openvino(folder)
    assert json.loads((folder / self_check.FILE).read_text()) == kept
    monkeypatch.delattr(self_check, "compute_reference")
    load_openvino(folder)


def test_a_processor_on_which_rows_depend_on_the_batch_is_refused_where_invariance_is_promised(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = openvino_engine.OpenVinoEngine.forward

    def shaky(self: object, step: object, wanted: object) -> object:
        outputs = real(self, step, wanted)  # type: ignore[arg-type]
        return outputs._replace(logits=outputs.logits + np.float32(1e-5 * len(outputs.logits)))

    monkeypatch.setattr(openvino_engine.OpenVinoEngine, "forward", shaky)
    with pytest.raises(EngineError, match=r"25 of 25 rows have other logits .* cannot serve target\.invariant true"):
        load_openvino(tiny_llama, invariant=True)


def test_another_release_is_refused(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ov, "__version__", "2027.0.0-1-abc")
    with pytest.raises(EngineError, match=r"OpenVINO 2027\.0\.0 is installed, expected 2026\.4\.1"):
        load_openvino(tiny_llama)


def test_a_folder_whose_codes_are_gone_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    for file in tiny_llama.glob("*.*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / RECORD).unlink(missing_ok=True)
    (tmp_path / RECORD).write_text(json.dumps({"sha256": "x", "sizes": {}, "source": "tiny.gguf"}))
    with pytest.raises(CheckpointError, match=re.escape(f"{quantised.FILE}' is missing: the 4-bit weights of 'tiny.")):
        read_weights(tmp_path, "exact")


def test_a_missing_and_an_unused_tensor_are_named() -> None:
    weights = Weights({"model.extra.weight": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.norm\.weight'"):
        weights.vector("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"1 tensors that are not used, as 'model\.extra\.weight'"):
        weights.finish()


def test_codes_survive_the_disk(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    code = random.integers(0, 16, (6, 2, 32)).astype(np.uint8)
    four = Blocks(
        quantised.pack(code),
        random.normal(size=(6, 2, 1)).astype(np.float32),
        random.normal(size=(6, 2, 1)).astype(np.float32),
    )
    assert four.zero is not None
    np.testing.assert_array_equal(four.dense(), ((code - four.zero) * four.scale).reshape(6, 64))
    vector = random.normal(size=5).astype(np.float32)
    quantised.save(tmp_path, {"a": four, "b": dataclasses.replace(to_int8(four.dense())), "c": vector})
    loaded = quantised.load(tmp_path)
    assert isinstance(loaded["a"], Blocks)
    assert isinstance(loaded["b"], Blocks)
    np.testing.assert_array_equal(loaded["a"].dense(), four.dense())
    assert np.abs(loaded["b"].dense() - four.dense()).max() <= np.abs(four.dense()).max() / 254 * 1.001
    np.testing.assert_array_equal(loaded["c"], vector)
