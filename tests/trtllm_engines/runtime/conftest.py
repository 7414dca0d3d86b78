"""TensorRT-LLM's place is taken by the fakes while the tests of this folder run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.drafters.engine import NetworkDrafter
from python_backend.settings import CoordinatorSettings, TargetSettings
from tests.trtllm_engines.drafter_engines import LENGTH, SLOTS, write_drafter_engines
from tests.trtllm_engines.engine_folder import write_engine

FAKES = Path(__file__).parents[2] / "fakes"
LIBRARIES = ("tensorrt", "tensorrt_llm")


@pytest.fixture(scope="module", autouse=True)
def _fake_library() -> Iterator[None]:
    before = _take_out()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FAKES)
        yield
    _take_out()
    sys.modules.update(before)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Callable[..., Any]:
    """Makes a TensorRtTarget over a tiny checkpoint.

    captured, wrong, limits: of the engine; coordinator: its settings; what is left: the target's settings.
    """
    from trtllm_engines.runtime.engine import TensorRtTarget

    def make(
        captured: tuple[int, ...] = (),
        wrong: dict[str, Any] | None = None,
        limits: dict[str, int] | None = None,
        checkpoint: Path = tiny_llama,
        coordinator: dict[str, int] | None = None,
        **target: Any,
    ) -> TensorRtTarget:
        folder = write_engine(tmp_path_factory.mktemp("engine"), checkpoint, captured, wrong, **(limits or {}))
        sizes = {"max_sequences": 8, "max_length": 256, "prefill_rows": 256, **(coordinator or {})}
        return TensorRtTarget(
            checkpoint,
            TargetSettings(engine="tensorrt_llm", checkpoint=str(checkpoint), engine_folder=folder, **target),
            CoordinatorSettings(**sizes),
        )

    return make


@pytest.fixture(scope="module")
def drafters(
    exported: Callable[[str], Any], tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """By kind: (the engines, the network), each with slots of its own."""
    from trtllm_engines.runtime.drafter import EngineDrafter

    made: dict[str, tuple[Any, NetworkDrafter]] = {}

    def of(kind: str) -> tuple[Any, NetworkDrafter]:
        if kind not in made:
            trained, graphs = exported(kind)
            folder = write_drafter_engines(graphs, tmp_path_factory.mktemp(kind))
            made[kind] = (
                EngineDrafter(kind, folder, tiny_llama, SLOTS, LENGTH, "cpu"),
                NetworkDrafter(kind, trained, tiny_llama, SLOTS, LENGTH, engine="torch"),
            )
        for drafter in made[kind]:
            drafter.release(np.arange(SLOTS))
        return made[kind]

    return of


def _take_out() -> dict[str, Any]:
    names = [name for name in sys.modules if name.split(".")[0] in LIBRARIES]
    return {name: sys.modules.pop(name) for name in names}
