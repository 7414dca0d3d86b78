"""An engine that differs from the contract is refused at once, and a Session that is fed wrongly says how."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.engine import EngineError
from python_backend.protocol import Part
from tests.support.checkpoints import make_step
from tests.trtllm_engines.engine_folder import write_engine
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.contract import ContractError
from trtllm_engines.runtime.session import EngineSession

Build = Callable[..., Any]

WRONG_ENGINES = [
    ({"rename": {"last_token_ids": "gather_ids"}}, r"input 'last_token_ids' .* is missing; input 'gather_ids'"),
    ({"drop": ["host_kv_cache_pool_mapping"]}, r"input 'host_kv_cache_pool_mapping' \(pool 0, layer\) is missing"),
    ({"dtype": {"position_ids": "int64"}}, "input 'position_ids' is int64, expected int32"),
    ({"dtype": {"logits": "float16"}}, "output 'logits' is float16, expected float32"),
    ({"shape": {"kv_cache_block_offsets": [2, -1, 2, -1]}}, r"\[2, -1, 2, -1\], expected \[1, B, 2, P\]"),
    ({"add": [["spec_decoding_use", "int32", [1]]]}, r"input 'spec_decoding_use' int32 \[1\] is wanted by the engine"),
    ({"drop": ["captured_1"]}, r"output 'captured_1' \(layer 1\) is missing"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_ENGINES)
def test_an_engine_with_other_tensors_is_refused(build: Build, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        build(captured=(1, 3), feature_layers=(1,), wrong=wrong)


def test_everything_that_is_wrong_with_an_engine_is_said_at_once(build: Build) -> None:
    wrong = {"drop": ["captured_1"], "dtype": {"logits": "float16"}}
    with pytest.raises(ContractError, match=r"'logits' is float16.*'captured_1'.*make engines"):
        build(captured=(1,), feature_layers=(1,), wrong=wrong)


@pytest.fixture(scope="module")
def engine(build: Build) -> Any:
    return build(captured=(3,), feature_layers=(3,))


@pytest.fixture
def fed(engine: Any) -> Any:
    """A session, and what a right pass over two sequences feeds it."""
    engine.release(np.arange(8))
    engine.passes.session._shapes = []  # as told by the tests themselves
    engine.step(make_step(Part(5, 0, [1] * 20), Part(2, 0, [2] * 40)))
    step = make_step(Part(2, 40, [3, 4]), Part(5, 20, [5]))
    wanted = np.array([1, 2])
    inputs = engine.passes.inputs.fill(step, engine.lay_out(step, wanted).table, wanted)
    outputs = {name: tensor[: 2 if name == "logits" else 3] for name, tensor in engine.passes.outputs.items()}
    return engine.passes.session._session, inputs, outputs


def feed(session: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> bool:
    runtime, utils = sys.modules["tensorrt_llm.runtime"], sys.modules["tensorrt_llm._utils"]
    session.infer_shapes(
        [runtime.TensorInfo(n, utils.torch_dtype_to_trt(t.dtype), tuple(t.shape)) for n, t in inputs.items()]
    )
    return session.run(inputs, outputs, 0)


def test_the_right_tensors_are_taken(fed: Any) -> None:
    assert feed(*fed)


def edit(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def apply(tensors: Any) -> None:
        tensors[name] = change(tensors[name].clone())

    return apply


def at(index: Any, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[index] = value
        return tensor

    return change


BLOCKS = "kv_cache_block_offsets"
WRONG_INPUTS = {
    "a name": (lambda t: t.update(tokens=t.pop("input_ids")), "Tensor:tokens is not an input tensor"),
    "a dtype": (edit("position_ids", lambda t: t.long()), "Tensor:position_ids has wrong dtype"),
    "a shape": (edit("context_lengths", lambda t: t[:1]), r"'context_lengths' is int32 \[1\], expected int32 \[2\]"),
    "dimensions": (edit(BLOCKS, lambda t: t[0]), r"'kv_cache_block_offsets' is int32 \[2, 2, 16\]"),
    "missing": (lambda t: t.pop("host_sink_token_length"), "'host_sink_token_length' has no address"),
    "strides": (edit("cache_indirection", lambda t: t.repeat(1, 1, 2)[..., ::2]), "not contiguous"),
    "past without new": (edit("host_past_key_value_lengths", at(0, 40)), "'host_past_key_value_lengths' has values"),
    "zero-based rows": (edit("last_token_ids", at(0, 0)), "'last_token_ids' has values"),
    "generation phase": (edit("host_request_types", at(0, 1)), "'host_request_types' has values"),
    "a position": (edit("position_ids", at(1, 40)), "'position_ids' has values"),
    "a shared block": (edit(BLOCKS, lambda t: t[:, :1].repeat(1, 2, 1, 1)), "has values"),
    "values among keys": (edit(BLOCKS, lambda t: t + 1), "has values"),
    "another host table": (edit(f"host_{BLOCKS}", at((0, 0, 0, 0), 600)), "'host_kv_cache_block_offsets' has values"),
    "no pool": (edit("host_kv_cache_pool_pointers", lambda t: t * 0), "'host_kv_cache_pool_pointers' has values"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_a_wrong_input_is_rejected(fed: Any, case: str) -> None:
    session, inputs, outputs = fed
    change, message = WRONG_INPUTS[case]
    wrong = dict(inputs)
    change(wrong)
    with pytest.raises((ContractError, ValueError), match=message):
        feed(session, wrong, outputs)


def test_a_wrong_output_is_rejected(fed: Any) -> None:
    session, inputs, outputs = fed
    with pytest.raises(ContractError, match=r"'logits' is float32 \[1, 300\], expected float32 \[2, 300\]"):
        feed(session, inputs, outputs | {"logits": outputs["logits"][:1]})
    with pytest.raises(ContractError, match="tensor 'captured_3' has no address"):
        feed(session, inputs, {"logits": outputs["logits"]})


def test_shapes_come_before_the_pass(fed: Any) -> None:
    session, inputs, outputs = fed
    session.shapes = None
    with pytest.raises(ContractError, match="run was called before infer_shapes"):
        session.run(inputs, outputs, 0)
    feed(session, inputs, outputs)
    with pytest.raises(ContractError, match="the shapes of input_ids changed after infer_shapes"):
        session.run(inputs | {"input_ids": inputs["input_ids"][:2]}, outputs, 0)


def test_a_folder_without_an_engine_or_of_another_release_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    with pytest.raises(EngineError, match=r"holds no config\.json: build the engine with `make engines`"):
        EngineConfig.read(tmp_path)
    folder = write_engine(tmp_path / "engine", tiny_llama)
    (folder / "rank0.engine").unlink()
    with pytest.raises(EngineError, match=r"holds no rank0\.engine"):
        EngineSession(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"version": "1.1.0"}))
    with pytest.raises(EngineError, match=r"built by TensorRT-LLM 1\.1\.0, expected 1\.2\.1: build it again"):
        EngineConfig.read(folder)
    del config["build_config"]["max_num_tokens"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="has no 'max_num_tokens'"):
        EngineConfig.read(folder)


def test_another_release_of_the_library_is_refused(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_engine(tmp_path, tiny_llama)
    EngineSession(folder)
    monkeypatch.setattr(sys.modules["tensorrt_llm"], "__version__", "1.3.0rc20")
    with pytest.raises(EngineError, match=r"TensorRT-LLM is 1\.3\.0rc20, expected 1\.2\.1"):
        EngineSession(folder)


def test_a_machine_without_the_library_is_told_where_to_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match=r"needs TensorRT-LLM 1\.2\.1.*serve from its Triton container"):
        EngineSession(tmp_path)
