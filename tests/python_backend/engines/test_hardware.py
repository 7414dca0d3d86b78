"""An engine says what it runs on and which build it is, so that no measurement of another is reused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from python_backend.engines import hardware
from python_backend.engines.hardware import built, hardware_of
from tests.support.checkpoints import load_engine

H20 = {"name": "NVIDIA H20", "total_memory": 97871 << 20, "multi_processor_count": 78, "major": 9, "minor": 0}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A GPU that a test may swap."""
    properties = SimpleNamespace(**H20)
    monkeypatch.setattr(hardware.torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(hardware, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC 12.2.0"
    )
    return properties


def test_the_cpu_is_for_the_caller_to_name(tiny_llama: Path) -> None:
    assert hardware_of("cpu") == load_engine(tiny_llama).describe().hardware == ""


def test_a_gpu_is_named_with_its_driver(gpu: SimpleNamespace) -> None:
    said = hardware_of("cuda")
    assert said.startswith("NVIDIA H20, 97871 MiB, 78 SMs, sm_90, driver 550.54.15, CUDA ")


@pytest.mark.parametrize("part", H20)
def test_another_gpu_is_called_otherwise(gpu: SimpleNamespace, part: str) -> None:
    before = hardware_of("cuda:0")
    setattr(gpu, part, "NVIDIA H200" if part == "name" else H20[part] * 2 + (1 << 20))  # type: ignore[operator]
    assert hardware_of("cuda:0") != before


def test_another_driver_is_another_machine(gpu: SimpleNamespace) -> None:
    before = hardware_of("cuda")
    hardware.DRIVER.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1")
    assert hardware_of("cuda") != before
    hardware.DRIVER.unlink()
    assert "driver unknown" in hardware_of("cuda")


def test_an_engine_that_was_built_again_is_another(tmp_path: Path) -> None:
    file = tmp_path / "rank0.engine"
    file.write_bytes(b"one")
    before = built(tmp_path, "rank0.engine")
    assert built(tmp_path, "rank0.engine") == before
    os.utime(file, (1, 1))
    assert built(tmp_path, "rank0.engine") != before
