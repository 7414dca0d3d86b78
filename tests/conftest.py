"""Targets shared by the whole session."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from build_scripts.fetch_model import fetch
from python_backend.assembly.engines import share_cores
from python_backend.checkpoints.checkpoint import embedded_folder
from python_backend.settings import load

share_cores()  # before any test imports torch
hypothesis.settings.register_profile("untimed", deadline=None)  # machines are noisy: no test asserts a time
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint folder of a random three-layer Llama with 300 tokens."""
    from tests.support.checkpoints import save_tiny  # imports torch

    return save_tiny("llama", tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def embedded() -> Path:
    """Checkpoint folder of the embedded model, fetched into the cache where it is missing."""
    return fetch(embedded_folder(load()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the embedded model are marked by the fixture that they use."""
    for item in items:
        if "embedded" in getattr(item, "fixturenames", ()):
            item.add_marker("embedded")
