"""The engine on a CUDA device. ANGELSPEC_TEST_DEVICE names another device: on a CPU the tests only show that they work
themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from build_scripts.drafter_weights import Drafter, find_drafters
from python_backend.engines.torch_engine import TorchEngine
from tests.support.checkpoints import load_engine, load_reference

SLOTS, MAX_LENGTH = 16, 512
FEATURE_LAYERS = (26, 27, 28, 30)


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """The device under test. Skips where it is missing."""
    name = os.environ.get("ANGELSPEC_TEST_DEVICE", "cuda")
    if torch.device(name).type == "cuda" and not torch.cuda.is_available():
        missing = "a torch that is built with CUDA" if torch.version.cuda is None else "a CUDA device that torch sees"
        pytest.skip(f"needs {missing}; here is torch {torch.__version__}")
    return name


@pytest.fixture(scope="session")
def engine(device: str, embedded: Path) -> TorchEngine:
    return load_engine(embedded, SLOTS, MAX_LENGTH, device=device, feature_layers=FEATURE_LAYERS)


@pytest.fixture(scope="session")
def half_engine(device: str, embedded: Path) -> TorchEngine:
    return load_engine(embedded, SLOTS, MAX_LENGTH, device=device, dtype="bfloat16", feature_layers=FEATURE_LAYERS)


@pytest.fixture(scope="session")
def reference(device: str, embedded: Path) -> Any:
    """The same checkpoint in transformers, in float32 on the device."""
    return load_reference(embedded).to(device)


@pytest.fixture(scope="session")
def drafter_weights(embedded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drafter]:
    return find_drafters(embedded, tmp_path_factory.mktemp("drafters"))


@pytest.fixture
def note(capsys: pytest.CaptureFixture[str], record_property: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    """Say a figure, and keep it in the report."""

    def say(name: str, value: Any) -> None:
        record_property(name, value)
        with capsys.disabled():
            print(f"\n  {name}: {value}", end="")

    return say
