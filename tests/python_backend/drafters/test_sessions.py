"""Every session drafts what the torch networks draft: all kinds, ragged batches, rollbacks, with and without noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.drafters import openvino_session
from python_backend.drafters.engine import NetworkDrafter
from python_backend.engine import EngineError
from python_backend.settings import DrafterSettings
from tests.support.drafters import random_step, save_spread
from tests.training.drafting import KINDS

DEPTH, SLOTS, LENGTH = 4, 5, 120
Pair = Callable[[str], tuple[NetworkDrafter, NetworkDrafter]]


@pytest.fixture(scope="module")
def pair(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """By kind: a drafter that OpenVINO runs in float32, and one that torch runs, both with empty slots."""
    made: dict[str, tuple[NetworkDrafter, NetworkDrafter]] = {}

    def of(kind: str) -> tuple[NetworkDrafter, NetworkDrafter]:
        if kind not in made:
            folder = save_spread(kind, tmp_path_factory.mktemp(kind), tiny_llama)
            both = ({"engine": "openvino", "eight_bit": False}, {"engine": "torch"})
            made[kind] = tuple(NetworkDrafter(kind, folder, tiny_llama, SLOTS, LENGTH, **e) for e in both)  # type: ignore
        for drafter in made[kind]:
            drafter.release(np.arange(SLOTS))
        return made[kind]

    return of


def noisy(count: int, seed: int) -> dict[str, Any]:
    """Temperature 1 for all but the first, each with a seed of its own, and bounds for some."""
    return {
        "temperature": np.array([0, *[1] * (count - 1)], dtype=np.float32),
        "seed": np.arange(seed, seed + count).astype(np.uint64),
        "top_k": np.array([0, 9, *[0] * count], dtype=np.int32)[:count],
        "top_p": np.array([0, 0, 0.9, *[0] * count], dtype=np.float32)[:count],
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_openvino_drafts_what_torch_drafts(pair: Pair, kind: str, data: st.DataObject) -> None:
    openvino, torch = pair(kind)
    stored = [0] * SLOTS
    for number in range(data.draw(st.integers(1, 4))):
        slots = data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]
        past = [data.draw(st.integers(max(0, stored[s] - 3), stored[s])) for s in slots]
        count = [min(data.draw(st.integers(1, 6 if p else 40)), LENGTH - p) for p in past]
        if min(count) < 1:
            return
        columns = noisy(len(slots), number) if data.draw(st.booleans(), label="noise") else {}
        step = random_step(slots, past, count, data.draw(st.integers(0, 99)), openvino.config.feature_size, **columns)
        silent = data.draw(st.sets(st.integers(0, len(slots) - 1), max_size=2), label="without an anchor")
        step.anchor[list(silent)] = -1
        depth = data.draw(st.integers(0, DEPTH + 1), label="depth")
        step.depth[:] = depth
        ours, theirs = openvino.step(step), torch.step(step)
        assert ours.draft_ids.tolist() == theirs.draft_ids.tolist()
        np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=1e-3)
        for slot, begin, rows in zip(slots, past, count, strict=True):
            stored[slot] = begin + rows


@pytest.mark.parametrize("kind", KINDS)
def test_what_memory_holds_beyond_a_context_does_not_matter(pair: Pair, kind: str) -> None:
    openvino, torch = pair(kind)
    for cache in openvino.session.context.caches:  # type: ignore[attr-defined]
        cache[:] = 50.0
    step = random_step([3, 1], [0, 0], [40, 2], 1, openvino.config.feature_size)
    assert openvino.step(step).draft_ids.tolist() == torch.step(step).draft_ids.tolist()


def test_each_session_says_what_it_is(pair: Pair) -> None:
    openvino, torch = (drafter.describe() for drafter in pair("mtp"))
    assert (openvino.engine, openvino.dtype, torch.engine, torch.dtype) == ("openvino", "float32", "torch", "float32")
    assert openvino.weights_sha256 == torch.weights_sha256


def test_another_release_of_openvino_is_refused(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_session, "check_release", raising)
    with pytest.raises(EngineError, match="another release"):
        NetworkDrafter("mtp", save_spread("mtp", tmp_path, tiny_llama), tiny_llama, SLOTS, LENGTH)


def raising() -> str:
    raise EngineError("another release")


def test_openvino_stays_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="engine openvino runs on the cpu, not on cuda: use engine torch"):
        DrafterSettings(kind="network", engine="openvino", device="cuda")
