"""The comparison counts only what all sequences do together, asks every engine for the same, and says who failed."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import decoding as bench_decoding
from benchmarks.decoding import BOUND, SEQUENCES, Rate, Worker, WorkerError, started
from benchmarks.peers import worker
from benchmarks.peers.environment import requantised
from build_scripts.tables import Grid, write_section


def test_steps_count_from_the_last_beginning_to_the_first_end() -> None:
    late, early = [1.0, 1.1, 1.2, 1.3, 9.0], [0.0, 1.05, 1.15, 1.25, 1.3]
    assert worker.step_ms([early, late]) == pytest.approx((1.3 - 1.0) / 3.5 * 1e3)
    assert worker.step_ms([[2.0, 2.5, 3.0]]) == pytest.approx(500)


def test_sequences_that_never_decoded_together_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="ask for more steps"):
        worker.step_ms([[0.0, 1.0], [1.0, 2.0]])


def test_a_worker_answers_line_by_line_whatever_its_engine_prints(tmp_path: Path) -> None:
    program = "from benchmarks.peers import worker\nimport os\nos.write(1, b'')\n" + (
        "worker.serve('toy 1', lambda prompts, steps: print('noise') or len(prompts) * 100 + steps)"
    )
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}"\n')
    (tmp_path / "python").chmod(0o755)
    with started(Worker("toy", (), tmp_path / "python")) as ask:
        assert [ask(4, 7), ask(1, 2)] == [407, 102]


def test_an_engine_that_ends_is_named_with_its_log() -> None:
    with (
        pytest.raises(WorkerError, match=r"peers\.nobody ended: see .*peer_nobody\.log"),
        started(Worker("nobody", (), Path(sys.executable))),
    ):
        pass


def test_every_engine_gets_the_same_prompts() -> None:
    assert worker.random_prompts(4, 8) == worker.random_prompts(4, 8)
    assert len(worker.random_prompts(4, 8)) == 4


def test_our_own_worker_decodes_the_tokens_of_the_engine(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import target
    from python_backend.protocol import Part
    from tests.support.checkpoints import load_engine, make_step

    engine = load_engine(tiny_llama)
    monkeypatch.setattr(worker, "VOCABULARY", 300)
    seen: list[list[int]] = []
    step = engine.step

    def record(asked):  # type: ignore[no-untyped-def]
        seen.append(asked.token_ids.tolist())
        return step(asked)

    monkeypatch.setattr(engine, "step", record)
    assert target.measure(engine, worker.random_prompts(2, 8), 3) > 0
    prompts, steps = [seen[0][:8], seen[0][8:]], seen[1:]
    assert len(steps) == 4
    for i in range(2):
        text = [*prompts[i], *(row[i] for row in steps)]
        for at in range(8, len(text)):
            assert step(make_step(Part(7, 0, text[:at]))).next_token[0] == text[at]


def test_requantising_keeps_everything_but_the_blocks(tmp_path: Path) -> None:
    q4_1, q4_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q4_0
    matrix = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    source = tmp_path / "toy.Q4_1.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tensor("norm", matrix[0])
    writer.add_tensor("matrix", gguf.quantize(matrix, q4_1), raw_dtype=q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = gguf.GGUFReader(requantised(source, tmp_path / "out"))
    tensors = {t.name: t for t in result.tensors}
    assert {n: t.tensor_type.name for n, t in tensors.items()} == {"norm": "F32", "matrix": "Q4_0"}
    np.testing.assert_array_equal(tensors["norm"].data, matrix[0])
    np.testing.assert_allclose(gguf.dequantize(tensors["matrix"].data, q4_0), matrix, atol=0.5)
    assert result.fields["llama.block_count"].contents() == 3
    assert result.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert result.fields["general.file_type"].contents() == int(gguf.LlamaFileType.MOSTLY_Q4_0)


RATES = {name: {s: Rate(s * 10.0, s * 9.0, s * 11.0) for s in SEQUENCES} for name in ("AngelSpec exact", BOUND)}


def test_a_row_an_engine_and_a_column_a_number_of_sequences() -> None:
    grid = bench_decoding.table(RATES)
    assert grid.columns == ["engine", "1 sequence", "4 sequences", "16 sequences", "32 sequences"]
    assert grid.rows[0] == ["AngelSpec exact", "10.0 (9-11)", "40.0 (36-44)", "160.0 (144-176)", "320.0 (288-352)"]


def test_the_plot_is_a_file(tmp_path: Path) -> None:
    bench_decoding.plot(RATES, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_section_of_a_page_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- one -->\nold\n<!-- end -->\nbetween\n<!-- two -->\nkept\n<!-- end -->\n")
    write_section(page, "one", Grid("title", ["a", "b"], [["x", "1"]]).markdown())
    one = "<!-- one -->\n| a | b |\n| --- | --- |\n| x | 1 |\n<!-- end -->\n"
    assert page.read_text() == f"above\n{one}between\n<!-- two -->\nkept\n<!-- end -->\n"
    with pytest.raises(ValueError, match="has no section 'three'"):
        write_section(page, "three", "")


def test_the_page_has_the_sections_that_are_written() -> None:
    from benchmarks.engine import PAGE

    for name in ("plain decoding", "verify passes"):
        assert f"<!-- {name} -->\n" in PAGE.read_text()
