"""Steps made of a drafter's graphs draft the tokens that serving drafts, over ragged contexts; ONNX like torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from typer import Typer
from typer.testing import CliRunner

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.context import Context
from python_backend.drafters.drafting import first_choice
from python_backend.drafters.serving import Append, BlockServing, RecurrentServing
from tests.training.drafting import VOCABULARY, toy_network
from tests.trtllm_engines.drafter_steps import TOLERANCE, BlockSteps, Graphs, RecurrentSteps, cache_of, dirty
from trtllm_engines import build_drafter, export_drafter
from trtllm_engines.drafter_graphs import GraphError, graphs
from trtllm_engines.export_drafter import export

EXPORTED = ("dfly", "mtp")  # what recipes name; one export takes seconds
KINDS = (*EXPORTED, "dflash", "dflare", "eagle3")
COUNTS = ((1, 5, 3), (4, 1, 2))  # rows that each of three sequences appends, in two steps


@pytest.fixture(scope="module", params=EXPORTED)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    """A drafter and its graphs as files, float32."""
    network = toy_network(request.param).eval()
    folder = tmp_path_factory.mktemp(request.param)
    files = {graph.name: folder / f"{graph.name}.onnx" for graph in graphs(network)}
    for graph in graphs(network):
        export(graph, files[graph.name], torch.float32)
    return network, files


def context_of(network: Any) -> Context:
    layers = network.config.layers
    return Context(network.config, layers, slots=4, max_length=48, dtype=torch.float32, device="cpu")


def check_against_serving(network: Any, run: Graphs) -> None:
    """Two rounds of append and draft: keys, values and drafts are serving's."""
    block = isinstance(network, BlockDrafter)
    mine, theirs = context_of(network), context_of(network)
    dirty(mine)
    steps = (BlockSteps if block else RecurrentSteps)(run, network, mine)
    serving = (BlockServing if block else RecurrentServing)(network, theirs)
    generator = torch.Generator().manual_seed(5)
    slot = np.arange(len(COUNTS[0]))
    for counts in COUNTS:
        count = np.array(counts, dtype=np.int32)
        rows = int(count.sum())
        features = torch.randn(rows, network.config.feature_size, generator=generator)
        following = torch.randint(VOCABULARY, (rows,), generator=generator)
        anchor = torch.randint(VOCABULARY, (len(slot),), generator=generator)
        past = theirs.stored[slot].copy()
        with torch.inference_mode():
            serving.append(Append(slot, past, count, features, following))
            theirs.stored[slot] += count
            expected = serving.draft(slot, anchor, network.config.depth, first_choice)
        steps.append(count, features, following)
        assert torch.equal(steps.draft(anchor), expected.tokens)
        for i, length in enumerate(theirs.stored[slot]):
            for ours, reference in zip((*mine.keys, *mine.values), (*theirs.keys, *theirs.values), strict=True):
                torch.testing.assert_close(ours[i, :, :length], reference[i, :, :length], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_draft_what_serving_drafts(kind: str) -> None:
    network = toy_network(kind).eval()
    check_against_serving(network, Graphs(network))


@pytest.mark.export
def test_onnx_is_torch_within_1e_4_and_drafts_what_serving_drafts(exported: tuple[Any, dict[str, Path]]) -> None:
    network, files = exported
    run = Graphs(network, {name: InferenceSession(str(file)) for name, file in files.items()})
    check_against_serving(network, run)
    assert run.worst < TOLERANCE


@pytest.mark.export
def test_dimensions_carry_the_names_that_engines_are_built_by(exported: tuple[Any, dict[str, Path]]) -> None:
    network, files = exported
    known = build_drafter.ranges(sequences=64, rows=2048, context=8192)
    for graph in graphs(network):
        session = InferenceSession(str(files[graph.name]))
        assert {i.name: tuple(i.shape) for i in session.get_inputs()} == {i.name: i.shape for i in graph.inputs}
        assert [output.name for output in session.get_outputs()] == list(graph.outputs)
        assert {size for i in graph.inputs for size in i.shape if isinstance(size, str)} <= set(known)


@pytest.mark.export
def test_every_operator_is_one_that_tensorrt_takes(exported: tuple[Any, dict[str, Path]]) -> None:
    record = json.loads((Path(build_drafter.__file__).parent / "contracts" / "onnx_operators.json").read_text())
    for file in exported[1].values():
        model = onnx.load(str(file))
        assert {node.op_type for node in model.graph.node} <= set(record["operators"])
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", export_drafter.OPSET)]


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
    for graph in graphs(toy_network("mtp")):
        assert [declared.name for declared in graph.inputs][-2:] == ["embedding", "head"]


def test_a_markov_head_cannot_be_exported() -> None:
    with pytest.raises(GraphError, match="dspark drafter cannot be exported"):
        graphs(toy_network("dspark"))


def test_the_program_writes_a_folder_that_engines_are_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = toy_network("dfly").eval()
    written = []
    monkeypatch.setattr(export_drafter, "load", lambda *_: network)
    monkeypatch.setattr(export_drafter, "export", lambda graph, file, dtype: written.append((file.name, dtype)))
    result = run_program(tmp_path)
    assert result.exit_code == 0
    assert written == [(f"{name}.onnx", torch.bfloat16) for name in ("context", "block", "rescore")]


def test_a_drafter_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run_program(tmp_path)
    assert result.exit_code == 1
    assert "drafter' holds no config.json" in result.output


def run_program(folder: Path) -> Any:
    app = Typer()
    app.command()(export_drafter.main)
    paths = ["--drafter", str(folder / "drafter"), "--checkpoint", str(folder), "--output", str(folder / "onnx")]
    return CliRunner().invoke(app, paths)
