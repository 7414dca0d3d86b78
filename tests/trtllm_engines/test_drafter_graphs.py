"""Steps made of a drafter's graphs draft the tokens that serving drafts, over ragged contexts; ONNX like torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from typer import Typer
from typer.testing import CliRunner

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.contract import contracts, lent_inputs
from python_backend.drafters.drafting import walk
from python_backend.drafters.graphs import graphs
from python_backend.drafters.pick import LIKELIEST, RACING, FirstChoice
from python_backend.drafters.session import Append, Asked
from python_backend.drafters.torch_context import TorchContext
from python_backend.drafters.torch_session import torch_session
from python_backend.drafters.weights import load, save
from tests.training.drafting import KINDS, VOCABULARY, toy_config, toy_network
from tests.trtllm_engines.drafter_steps import TOLERANCE, BlockSteps, Graphs, RecurrentSteps, cache_of, dirty
from trtllm_engines import build_drafter, export_drafter
from trtllm_engines.drafter_folder import DrafterFolder

COUNTS = ((1, 5, 3), (4, 1, 2))  # rows that each of three sequences appends, in two steps
Export = Callable[[str], Any]


ROWS = 48


def context_of(network: Any) -> TorchContext:
    return TorchContext(network.config, slots=4, rows=ROWS, dtype=torch.float32, device="cpu")


def check_against_serving(network: Any, run: Graphs) -> None:
    """Two rounds of append and draft: keys, values and drafts are serving's."""
    block = isinstance(network, BlockDrafter)
    mine, session = context_of(network), torch_session(network, 4, ROWS)
    theirs: TorchContext = session.context  # type: ignore[attr-defined]
    dirty(mine)
    steps = (BlockSteps if block else RecurrentSteps)(run, network, mine)
    generator = torch.Generator().manual_seed(5)
    slot = np.arange(len(COUNTS[0]))
    for counts in COUNTS:
        count = np.array(counts, dtype=np.int32)
        rows = int(count.sum())
        features = torch.randn(rows, network.config.feature_size, generator=generator)
        following = torch.randint(VOCABULARY, (rows,), generator=generator)
        anchor = torch.randint(VOCABULARY, (len(slot),), generator=generator)
        new, depth = Append(slot, steps.stored[slot].copy(), count, features, following.numpy()), network.config.depth
        asked = Asked(slot, anchor.numpy(), depth, LIKELIEST)
        with torch.inference_mode():
            expected = walk(session.start(new, asked), depth, FirstChoice())
        steps.append(count, features, following)
        assert torch.equal(steps.draft(anchor), expected.tokens)
        for i, length in enumerate(steps.stored[slot]):
            for ours, reference in zip((*mine.keys, *mine.values), (*theirs.keys, *theirs.values), strict=True):
                torch.testing.assert_close(ours[i, :, :length], reference[i, :, :length], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_draft_what_serving_drafts(kind: str) -> None:
    network = toy_network(kind).eval()
    check_against_serving(network, Graphs(network))


@pytest.mark.export
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_is_torch_within_1e_4_and_drafts_what_serving_drafts(
    exported: Export, tiny_llama: Path, kind: str
) -> None:
    trained, files = exported(kind)
    network = load(trained, tiny_llama).eval()
    run = Graphs(network, {file.stem: InferenceSession(str(file)) for file in files.glob("*.onnx")})
    assert set(run.sessions) == set(run.graphs)
    check_against_serving(network, run)
    assert run.worst < TOLERANCE


@pytest.mark.export
@pytest.mark.parametrize("kind", KINDS)
def test_files_have_the_contracts_tensors_with_the_dimensions_that_engines_are_built_by(
    exported: Export, kind: str
) -> None:
    files = exported(kind).graphs
    known = build_drafter.ranges(sequences=64, rows=2048, context=8192)[0]
    for contract in contracts(DrafterFolder.read(files).config):
        session = InferenceSession(str(files / f"{contract.name}.onnx"))
        for ports, nodes in zip(contract[1:], (session.get_inputs(), session.get_outputs()), strict=True):
            assert [node.name for node in nodes] == [port.name for port in ports]
            assert [tuple(node.shape) for node in nodes] == [port.shape for port in ports]
            types = {"tensor(int64)": True, "tensor(float)": False}
            assert [types[node.type] for node in nodes] == [port.integer for port in ports]
        assert {size for port in contract.inputs for size in port.shape if isinstance(size, str)} <= set(known)


RECORDED = json.loads((Path(build_drafter.__file__).parent / "contracts" / "onnx_operators.json").read_text())
NAMES = {  # TensorRT's names of types; what is float32 here is that or bfloat16 in an engine
    onnx.TensorProto.FLOAT: ("FP32", "BF16"),
    onnx.TensorProto.INT64: ("INT64",),
    onnx.TensorProto.BOOL: ("BOOL",),
}


@pytest.mark.export
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_takes_its_types_in_tensorrt(exported: Export, kind: str) -> None:
    for file in exported(kind).graphs.glob("*.onnx"):
        model = onnx.shape_inference.infer_shapes(onnx.load(str(file)))
        graph, constants = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
        values = {
            value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)
        }
        types = values | {name: tensor.data_type for name, tensor in constants.items()}
        for node in graph.node:
            taken = RECORDED["operators"][node.op_type]
            data = node.input[:1] if node.op_type in SHAPED else node.input
            for name in filter(None, data):
                assert set(NAMES[types[name]]) <= set(taken), f"{file.name}: {node.op_type} of {types[name]}"
            if node.op_type in AXES and len(node.input) > 1:
                assert node.input[1] in constants
            if node.op_type == "TopK":
                assert onnx.numpy_helper.to_array(constants[node.input[1]]) < 3840
                assert all(attribute.i for attribute in node.attribute if attribute.name == "sorted")
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", export_drafter.OPSET)]


SHAPED = ("Expand", "Reshape", "Slice", "Split", "Squeeze", "TopK", "Unsqueeze", "ReduceMean")  # sizes after the data
AXES = ("Squeeze", "Unsqueeze", "ReduceMean")


@pytest.mark.export
@pytest.mark.parametrize("kind", KINDS)
def test_every_input_is_used(exported: Export, kind: str) -> None:
    """TensorRT may drop an input that nothing reads, and the engine would differ from the contract."""
    for file in exported(kind).graphs.glob("*.onnx"):
        graph = onnx.load(str(file)).graph
        assert {value.name for value in graph.input} <= {name for node in graph.node for name in node.input}


def test_what_memory_holds_beyond_a_context_does_not_matter() -> None:
    network = toy_network("dfly").eval()
    run, anchor, length = Graphs(network), torch.tensor([7, 9]), torch.tensor([0, 3])
    answers = []
    for dirt in (0.0, 50.0):
        context = context_of(network)
        for tensor in (*context.keys, *context.values):
            tensor.fill_(dirt)
            tensor[1, :, :3] = 0.5
        answers.append(run("block", anchor=anchor, length=length, **cache_of(context, 2))["hidden"])
    assert torch.equal(*answers)


def test_the_engines_share_embedding_and_head() -> None:
    for contract in contracts(toy_config("mtp")):
        assert [port.name for port in contract.inputs][-2:] == ["embedding", "head"]


def test_a_markov_graph_knows_every_token_and_borrows_nothing() -> None:
    network = toy_network("dspark").eval()
    follow = next(graph for graph in graphs(network) if graph.name == "follow")
    assert not lent_inputs(follow.contract)
    everyone = torch.arange(VOCABULARY)
    base = torch.zeros(VOCABULARY, len(network.draft_ids))
    expected = network.after(base, everyone)
    assert torch.equal(follow.module(base, everyone)[1], expected.topk(min(RACING, base.shape[1])).values)
    assert len(expected.unique(dim=0)) > VOCABULARY - 8  # tokens that cannot be drafted share a row


def test_the_program_writes_a_folder_that_engines_are_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = toy_network("dspark").eval()
    save(network, tmp_path / "drafter")
    written = []
    monkeypatch.setattr(export_drafter, "load", lambda *_: network)
    monkeypatch.setattr(export_drafter, "export", lambda graph, file, dtype: written.append((file.name, dtype)))
    result = run_program(tmp_path)
    assert result.exit_code == 0
    assert written == [(f"{name}.onnx", torch.bfloat16) for name in ("context", "block", "follow")]
    beside = DrafterFolder.read(tmp_path / "onnx")
    assert (beside.config, beside.dtype, beside.calibration) == (network.config, "bfloat16", None)
    assert torch.equal(beside.draft_ids, network.draft_ids)
    assert beside.weights_sha256 == weights_sha256(tmp_path / "drafter")


def test_a_drafter_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run_program(tmp_path)
    assert result.exit_code == 1
    assert "drafter' holds no config.json" in result.output


def run_program(folder: Path) -> Any:
    app = Typer()
    app.command()(export_drafter.main)
    paths = ["--drafter", str(folder / "drafter"), "--checkpoint", str(folder), "--output", str(folder / "onnx")]
    return CliRunner().invoke(app, paths)
