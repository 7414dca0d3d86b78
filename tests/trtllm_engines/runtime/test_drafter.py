"""Built engines draft what the torch network drafts: every kind, ragged batches, rollbacks, with and without noise.

The engines are exported graphs that the fake TensorRT runs, from the addresses that it is given alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.protocol import Part, ProtocolError
from tests.support.checkpoints import load_engine, make_step
from tests.support.drafters import random_step
from tests.trtllm_engines.drafter_engines import KINDS, LENGTH, SLOTS

pytestmark = pytest.mark.export
DEPTH = 4
Drafters = Callable[[str], Any]


def noisy(count: int, seed: int) -> dict[str, Any]:
    """Temperature 1 for all but the first, each with a seed of its own."""
    return {
        "temperature": np.array([0, *[1] * (count - 1)], dtype=np.float32),
        "seed": np.arange(seed, seed + count).astype(np.uint64),
        "top_k": np.array([0, 9, *[0] * count], dtype=np.int32)[:count],
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_engines_draft_what_the_network_drafts(drafters: Drafters, kind: str, data: st.DataObject) -> None:
    engines, network = drafters(kind)
    stored = [0] * SLOTS
    for number in range(data.draw(st.integers(1, 4))):
        slots = data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]
        past = [data.draw(st.integers(max(0, stored[s] - 3), stored[s])) for s in slots]
        count = [min(data.draw(st.integers(1, 6 if p else 40)), LENGTH - p) for p in past]
        if min(count) < 1:
            return
        columns = noisy(len(slots), number) if data.draw(st.booleans(), label="noise") else {}
        step = random_step(slots, past, count, data.draw(st.integers(0, 99)), network.config.feature_size, **columns)
        ours, theirs = engines.step(step), network.step(step)
        assert ours.draft_ids.tolist() == theirs.draft_ids.tolist()
        np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=1e-3)
        for slot, begin, rows in zip(slots, past, count, strict=True):
            stored[slot] = begin + rows
    for ours, theirs in zip(engines.session.context.keys, network.session.context.keys, strict=True):
        for slot, rows in enumerate(stored):
            torch.testing.assert_close(ours[slot, :, :rows], theirs[slot, :, :rows], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_long_prompt_takes_several_passes_beside_short_contexts(drafters: Drafters, kind: str) -> None:
    engines, network = drafters(kind)
    step = random_step([3, 0, 1], [0, 0, 0], [100, 2, 17], 5, network.config.feature_size)
    assert engines.step(step).draft_ids.tolist() == network.step(step).draft_ids.tolist()


def test_more_context_rows_than_an_engine_takes_go_in_several_passes(drafters: Drafters) -> None:
    engines, network = drafters("dfly")
    step = random_step([4, 2], [0, 0], [90, 70], 6, network.config.feature_size)
    assert engines.step(step).draft_ids.tolist() == network.step(step).draft_ids.tolist()
    assert engines.session.rows == 64


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_drafts_are_the_first_of_a_whole_block(drafters: Drafters, kind: str) -> None:
    engines, network = drafters(kind)
    step = random_step([1], [0], [9], 7, network.config.feature_size)
    whole = engines.step(step).draft_ids
    engines.release(np.array([1]))
    fewer = random_step([1], [0], [9], 7, network.config.feature_size, depth=2)
    assert engines.step(fewer).draft_ids.tolist() == whole[:, :2].tolist()


def test_a_chunk_without_an_anchor_is_appended_and_not_drafted_for(drafters: Drafters) -> None:
    engines, network = drafters("mtp")
    width = network.config.feature_size
    silent = random_step([2], [0], [30], 8, width, anchor=np.array([-1], dtype=np.int32))
    assert (engines.step(silent).draft_ids == -1).all()
    network.step(silent)
    step = random_step([2], [30], [4], 9, width)
    assert engines.step(step).draft_ids.tolist() == network.step(step).draft_ids.tolist()


def test_a_broken_contract_is_named_and_changes_nothing(drafters: Drafters) -> None:
    engines, network = drafters("dfly")
    with pytest.raises(ProtocolError, match="'past_length' is 3 for slot 0, limit 0"):
        engines.step(random_step([0], [3], [2], 1, network.config.feature_size))
    assert not engines.context.stored.any()


def test_a_description_is_the_networks_but_for_the_engine(drafters: Drafters) -> None:
    engines, network = (drafter.describe() for drafter in drafters("dspark"))
    assert (engines.engine, engines.engine_version, engines.dtype) == ("tensorrt", "10.14.1.48", "float32")
    for name in ("weights_sha256", "target_sha256", "feature_layers", "max_depth", "slots", "vocabulary_size"):
        assert getattr(engines, name) == getattr(network, name)


def test_drafters_in_a_process_share_the_embedding(drafters: Drafters) -> None:
    first, second = (drafters(kind)[0].session.run for kind in ("dfly", "mtp"))
    assert first._lent["embedding"] is second._lent["embedding"]


@pytest.mark.parametrize("kind", ["dfly", "mtp"])
def test_hosted_they_read_what_the_target_left_on_the_device(drafters: Drafters, tiny_llama: Path, kind: str) -> None:
    engines, network = drafters(kind)
    layers = (0, 2, 3)
    columns = np.concatenate([np.arange(48) + 48 * layers.index(layer) for layer in network.config.feature_layers])
    drafted = []
    for drafter in (engines, network):
        store = FeatureStore(SLOTS)
        target = HostingTarget(load_engine(tiny_llama, SLOTS, LENGTH, feature_layers=layers), store)
        target.step(make_step(Part(3, 0, list(range(40))), Part(1, 0, [5, 6, 7])))
        step = random_step([1, 3], [0, 0], [3, 40], 1, 0, features=np.zeros((43, 0), dtype=np.float32))
        drafted.append(HostedDrafter(drafter, store, columns).step(step).draft_ids.tolist())
    assert drafted[0] == drafted[1]
