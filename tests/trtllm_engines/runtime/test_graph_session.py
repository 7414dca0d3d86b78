"""Drafter engines that differ from their contract are refused at the start, a pass that is fed wrongly before it."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trtllm_engines
from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.engine import EngineError
from tests.support.checkpoints import save_tiny
from tests.trtllm_engines.drafter_engines import LENGTH, SLOTS, write_drafter_engines
from trtllm_engines.runtime.contract import ContractError

pytestmark = pytest.mark.export
Export = Callable[[str], Any]
Drafters = Callable[[str], Any]
ROOT = Path(trtllm_engines.__file__).parent

WRONG_ENGINES = [
    ("block", {"rename": {"length": "lengths"}}, r"input 'length' \(block\) is missing; input 'lengths' int64 \[-1\]"),
    ("block", {"drop": ["hidden"]}, r"output 'hidden' \(block\) is missing"),
    ("context", {"dtype": {"features": "bfloat16"}}, "input 'features' is bfloat16, expected float32"),
    ("follow", {"dtype": {"previous": "int32"}}, "input 'previous' is int32, expected int64"),
    (
        "follow",
        {"shape": {"logits": [-1, 16]}},
        r"output 'logits' has shape \[-1, 16\], expected \[sequences, 200\]",
    ),
    ("follow", {"shape": {"head": [300, 48]}}, r"input 'head' has shape \[300, 48\], expected \[200, 48\]"),
]


def load_wrong(exported: Export, folder: Path, checkpoint: Path, kind: str = "dfly", **engines: Any) -> Any:
    from trtllm_engines.runtime.drafter import EngineDrafter

    write_drafter_engines(exported(kind).graphs, folder, **engines)
    return EngineDrafter(kind, folder, checkpoint, SLOTS, LENGTH, "cpu")


@pytest.mark.parametrize(("graph", "wrong", "message"), WRONG_ENGINES)
def test_an_engine_with_other_tensors_is_refused(
    exported: Export, tmp_path: Path, tiny_llama: Path, graph: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        load_wrong(exported, tmp_path, tiny_llama, wrong={graph: wrong})


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"sequences": 4}, r"block\.engine' is built for .*'sequences': 4.* the settings need .*'sequences': 5"),
        ({"context": 124}, r"'context': 124.* the settings need .*'context': 125.*build it again"),
    ],
)
def test_an_engine_that_does_not_reach_as_far_as_the_settings_is_refused(
    exported: Export, tmp_path: Path, tiny_llama: Path, limits: dict[str, int], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        load_wrong(exported, tmp_path, tiny_llama, **limits)


def test_an_engine_of_another_release_is_refused(exported: Export, tmp_path: Path, tiny_llama: Path) -> None:
    load_wrong(exported, tmp_path, tiny_llama)
    file = tmp_path / "block.engine"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"release": "10.9"}))
    from trtllm_engines.runtime.drafter import EngineDrafter

    with pytest.raises(EngineError, match=r"TensorRT 10\.14\.1\.48 cannot load '.*block\.engine'.*build the engine"):
        EngineDrafter("dfly", tmp_path, tiny_llama, SLOTS, LENGTH, "cpu")
    file.unlink()
    with pytest.raises(EngineError, match=r"block\.engine' is not there.*make engines"):
        EngineDrafter("dfly", tmp_path, tiny_llama, SLOTS, LENGTH, "cpu")


def test_another_targets_engines_are_refused(exported: Export, tmp_path: Path) -> None:
    other = save_tiny("qwen2", tmp_path / "other")
    with pytest.raises(CheckpointError, match="was trained for a target with weights"):
        load_wrong(exported, tmp_path / "engines", other)


def test_a_folder_without_what_lies_beside_engines_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    from trtllm_engines.runtime.drafter import EngineDrafter

    with pytest.raises(EngineError, match=r"holds no config\.json with drafter\.safetensors: export"):
        EngineDrafter("dfly", tmp_path, tiny_llama, SLOTS, LENGTH, "cpu")


def test_what_is_used_of_tensorrt_is_recorded_declared_in_the_stubs_and_there_in_the_fake() -> None:
    record = json.loads((ROOT / "contracts" / "tensorrt_10_14.json").read_text())["classes"]
    code = (ROOT / "runtime" / "graph_session.py").read_text().split("class Profile")[1]
    used = set(re.findall(r"\b_?(?:engine|context|runtime)\.([a-z]\w+)", code))
    assert used == {member for members in record.values() for member in members}
    stubs = ast.parse((ROOT / "stubs" / "tensorrt" / "__init__.pyi").read_text()).body
    classes = {node.name: node for node in stubs if isinstance(node, ast.ClassDef)}
    for name, members in record.items():
        assert set(members) <= {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        fake = getattr(importlib.import_module("tensorrt"), name)
        assert set(members) <= set(vars(fake)) | set(fake.__init__.__code__.co_names)


@pytest.fixture
def fed(drafters: Drafters) -> tuple[Any, dict[str, Any]]:
    """DFly's block engine, and what a right pass over two sequences feeds it."""
    engines, _ = drafters("dfly")
    from trtllm_engines.runtime.drafter_serving import held_context

    inputs = {
        "anchor": torch.tensor([1, 2]),
        "length": torch.tensor([5, 0]),
        **held_context(engines.session.context, np.array([1, 3]), 5),
        "embedding": engines.session.run._lent["embedding"],
    }
    return engines.session.run.sessions["block"], inputs


def test_the_right_tensors_are_taken_whatever_their_strides(fed: tuple[Any, dict[str, Any]]) -> None:
    session, inputs = fed
    expected = session.run(inputs)
    keys = inputs["keys_0"]
    inputs["keys_0"] = torch.stack((keys, keys + 1), -1)[..., 0]
    inputs["anchor"] = torch.tensor([9, 1, 2])[1:]
    assert all(torch.equal(found, expected[name]) for name, found in session.run(inputs).items())


WRONG_INPUTS = {
    "missing": (lambda t: t.pop("length"), "graph 'block' has no input 'length'"),
    "unknown": (lambda t: t.update(tokens=t["anchor"]), "graph 'block' knows no input 'tokens'"),
    "a dtype": (lambda t: t.update(anchor=t["anchor"].int()), r"'anchor' is int32 \[2\], expected int64 \[2\]"),
    "a type of float": (
        lambda t: t.update(embedding=t["embedding"].half()),
        r"'embedding' is float16 .* expected float32",
    ),
    "sequences": (lambda t: t.update(length=t["length"][:1]), r"'length' is int64 \[1\], expected int64 \[2\]"),
    "dimensions": (lambda t: t.update(keys_0=t["keys_0"][0]), "'keys_0' is float32"),
    "a fixed size": (lambda t: t.update(values_1=t["values_1"][..., :4]), "'values_1' is float32"),
    "more than built for": (
        lambda t: t.update({n: v.repeat(1, 1, 3, 1) for n, v in t.items() if n.startswith(("keys", "values"))}),
        r"block\.engine' is not built for .*'context': 192",
    ),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_a_wrong_input_is_rejected(fed: tuple[Any, dict[str, Any]], case: str) -> None:
    session, inputs = fed
    change, message = WRONG_INPUTS[case]
    change(inputs)
    with pytest.raises(ContractError, match=message):
        session.run(inputs)


def test_what_tensorrt_does_not_take_is_an_engine_error(
    fed: tuple[Any, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, inputs = fed
    context = session._profiles[0].context
    for method, message in (
        ("execute_async_v3", "did not take a pass"),
        ("set_tensor_address", "did not take the address of"),
        ("set_input_shape", "refused"),
    ):
        session._profiles[0].sizes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(context, method, lambda *_: False)
            with pytest.raises(EngineError, match=message):
                session.run(inputs)


def test_shapes_are_told_only_when_they_change(
    fed: tuple[Any, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, inputs = fed
    context, told = session._profiles[0].context, []
    tell = context.set_input_shape
    monkeypatch.setattr(context, "set_input_shape", lambda name, shape: told.append(name) or tell(name, shape))
    session._profiles[0].sizes.clear()
    session.run(inputs)
    session.run(inputs)
    assert len(told) == len(inputs)
