"""Drafter engines get the ranges that the names of their graphs' dimensions say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from tests.trtllm_engines.fake_tensorrt import FakeTensorRt, Graph, ITensor, MemoryPoolType
from trtllm_engines import build_drafter
from trtllm_engines.build_drafter import BuildError, build, ranges

SIZES = ranges(sequences=64, rows=2048, context=8192)
BLOCK = Graph([ITensor("anchor", ("sequences",)), ITensor("keys", ("sequences", 8, "context", 128))])
CONTEXT = Graph([ITensor("features", ("rows", 20480))])
APPEND = Graph([ITensor("features", ("sequences", "chunk", 4096)), ITensor("count", ("sequences",))])


def test_dynamic_dimensions_get_their_range_and_fixed_ones_stay() -> None:
    library = FakeTensorRt({"block": BLOCK})
    assert build(Path("block.onnx"), SIZES, library) == b"engine of block"
    ((_, config),) = library.built
    assert config.profiles[0].shapes == {
        "anchor": ((1,), (32,), (64,)),
        "keys": ((1, 8, 1, 128), (32, 8, 2048, 128), (64, 8, 8192, 128)),
    }


def test_types_are_the_graphs_own_and_the_workspace_is_bounded() -> None:
    library = FakeTensorRt({"context": CONTEXT})
    build(Path("context.onnx"), SIZES, library)
    ((network, config),) = library.built
    assert network.flags == 1 << 1  # strongly typed
    assert config.pools == {MemoryPoolType.WORKSPACE: 4 << 30}


def test_prompts_have_a_profile_of_their_own_one_sequence_and_more_rows() -> None:
    library = FakeTensorRt({"append": APPEND})
    build(Path("append.onnx"), SIZES, library)
    ((_, config),) = library.built
    assert [profile.shapes["features"] for profile in config.profiles] == [
        ((1, 1, 4096), (32, 4, 4096), (64, 16, 4096)),
        ((1, 1, 4096), (1, 256, 4096), (1, 256, 4096)),
    ]


def test_a_small_batch_still_has_ordered_ranges() -> None:
    for sizes in ranges(sequences=1, rows=1, context=1):
        for low, usual, high in sizes.values():
            assert low <= usual <= high


def test_an_unknown_dimension_is_named() -> None:
    library = FakeTensorRt({"block": Graph([ITensor("anchor", ("batch",))])})
    with pytest.raises(BuildError, match=r"input anchor, axis 0: dynamic dimension 'batch' is unknown"):
        build(Path("block.onnx"), SIZES, library)


def test_a_graph_that_cannot_be_read_says_why() -> None:
    library = FakeTensorRt({"block": Graph([], error="no importer for op Foo")})
    with pytest.raises(BuildError, match=r"cannot read 'block\.onnx': no importer for op Foo"):
        build(Path("block.onnx"), SIZES, library)


def test_a_graph_that_cannot_be_built_is_named() -> None:
    library = FakeTensorRt({"block": Graph(BLOCK.inputs, builds=False)})
    with pytest.raises(BuildError, match=r"cannot build 'block\.onnx'"):
        build(Path("block.onnx"), SIZES, library)


def test_the_program_builds_every_graph_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt({"append": APPEND, "block": BLOCK}))
    (tmp_path / "onnx").mkdir()
    for name in ("append.onnx", "block.onnx", "block.onnx.data", "config.json", "drafter.safetensors"):
        (tmp_path / "onnx" / name).touch()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert (tmp_path / "engines" / "append.engine").read_bytes() == b"engine of append"
    assert (tmp_path / "engines" / "block.engine").read_bytes() == b"engine of block"
    beside = {file.name for file in (tmp_path / "engines").iterdir() if file.suffix != ".engine"}
    assert beside == {"config.json", "drafter.safetensors"}


def test_without_graphs_or_tensorrt_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "there is no TensorRT here" in result.output
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt({}))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "holds no *.onnx graph" in result.output
    assert "--no-drafters" in result.output


def run(folder: Path):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(build_drafter.main)
    sizes = ["--sequences", "64", "--rows", "2048", "--context", "8192"]
    return CliRunner().invoke(app, ["--onnx", str(folder / "onnx"), "--output", str(folder / "engines"), *sizes])
