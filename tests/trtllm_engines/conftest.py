"""Exports take seconds each: every kind's are made once, for all tests that look at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.python_backend.drafters.conftest import one_thread  # noqa: F401
from tests.trtllm_engines.drafter_engines import save_spread
from trtllm_engines.export_drafter import export_all


class Exported(NamedTuple):
    trained: Path
    graphs: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Callable[[str], Exported]:
    """By kind: a trained drafter of the tiny target and the folder of its graphs, float32."""
    made: dict[str, Exported] = {}

    def of(kind: str) -> Exported:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            trained = save_spread(kind, folder / "trained", tiny_llama)
            export_all(trained, tiny_llama, folder / "onnx", "float32")
            made[kind] = Exported(trained, folder / "onnx")
        return made[kind]

    return of
