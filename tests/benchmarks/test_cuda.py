"""The benchmark of a GPU measures what it says, on any device, and its record becomes a page of the documentation."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks import cuda as bench_cuda
from benchmarks import cuda_record
from benchmarks.cuda import Bench
from benchmarks.cuda_record import DraftTime, EngineTimes, Record, Spread, StepTime
from benchmarks.peers import worker
from build_scripts.drafter_weights import NAMES, find_drafters
from python_backend.drafters.config import DrafterConfig

SEQUENCES, ROWS = [1, 3], [1, 4]


def spread(middle: float) -> Spread:
    return Spread(median=middle, low=middle - 1, high=middle + 1)


def record() -> Record:
    steps = (
        StepTime(sequences=1, rows=1, ms=spread(8), kernel_ms=2),
        StepTime(sequences=64, rows=1, ms=spread(10), kernel_ms=None),
    )
    drafts = tuple(DraftTime(drafter="drafter_mtp", trained=False, depth=3, sequences=s, ms=spread(4)) for s in (1, 64))
    engines = tuple(
        EngineTimes(dtype=dtype, weight_bytes=size, steps=steps, decoding={1: 100.0, 64: 6000.0}, drafts=drafts)
        for dtype, size in (("float32", 4_000_000_000), ("bfloat16", 2_000_000_000))
    )
    return Record(
        device="Some GPU",
        torch="2",
        cuda="13",
        driver="1",
        date="2026-01-01",
        context=256,
        bytes_per_s=4e12,
        engines=engines,
    )


def test_the_bound_and_the_share_outside_kernels_are_worked_out_as_by_hand() -> None:
    found = record()
    assert found.bound(found.engines[0], 64) == pytest.approx(64 * 1000)
    assert [step.outside for step in found.engines[0].steps] == [0.75, None]


def test_a_record_is_written_into_its_page(tmp_path: Path) -> None:
    page, picture = tmp_path / "cuda.md", tmp_path / "cuda.png"
    shutil.copy(cuda_record.PAGE, page)
    cuda_record.write(Record.model_validate_json(record().model_dump_json()), page, picture)
    text = page.read_text()
    assert "| 1 x 1 | 8.00 (7.00-9.00) | 75% | 8.00 (7.00-9.00) | 75% |" in text
    assert "| 64 x 1 | 10.00 (9.00-11.00) | - | 10.00 (9.00-11.00) | - |" in text
    assert "| bfloat16, bandwidth bound | 2000 | 128000 |" in text
    assert "| drafter_mtp, 3 drafts, untrained, beside float32 | 4.00 (3.00-5.00) | 4.00 (3.00-5.00) |" in text
    assert "![Steps and plain decoding](cuda.png)" in text
    assert picture.stat().st_size > 10_000


def test_every_shape_is_measured(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELSPEC_TARGET__CHECKPOINT", str(tiny_llama))
    monkeypatch.setattr(worker, "VOCABULARY", 300)
    found = Bench("cpu", SEQUENCES, ROWS, context=20, repeats=1).run(steps=3, scratch=tmp_path)
    assert [engine.dtype for engine in found.engines] == ["float32", "bfloat16"]
    assert found.engines[0].weight_bytes == 2 * found.engines[1].weight_bytes
    for engine in found.engines:
        assert [(s.sequences, s.rows) for s in engine.steps] == [(1, 1), (3, 1), (1, 4), (3, 4)]
        assert list(engine.decoding) == SEQUENCES
        assert [(d.drafter, d.sequences) for d in engine.drafts] == [(n, s) for n in NAMES for s in SEQUENCES]
        assert all(rate > 0 for rate in engine.decoding.values())


def test_without_weights_for_the_target_fresh_drafters_are_made(tiny_llama: Path, tmp_path: Path) -> None:
    for name, drafter in find_drafters(tiny_llama, tmp_path).items():
        assert not drafter.trained
        assert drafter.folder.parent == tmp_path
        assert DrafterConfig.read(drafter.folder).kind == NAMES[name]


def test_a_machine_without_a_gpu_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_cuda.torch.cuda, "is_available", lambda: False)
    with pytest.raises(bench_cuda.typer.Exit):
        bench_cuda.main()
    assert re.search(r"device is cuda, and torch \S+ sees no CUDA device", capsys.readouterr().out)
