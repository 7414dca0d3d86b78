"""A sequence that begins with rows of another computes the same as one that begins from nothing, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.engines.openvino_engine import OpenVinoEngine
from python_backend.protocol import Array, Part, ProtocolError
from tests.support.checkpoints import VOCABULARY, make_step
from tests.support.openvino_targets import load_openvino
from tests.support.prefixes import Recorder, commit, converse, leave_first_turn, opening, tokens

SLOTS, LAYERS, BLOCK = 6, (0, 3), 32


@pytest.fixture
def engine(tiny_llama: Path) -> OpenVinoEngine:
    return load_openvino(tiny_llama, SLOTS, invariant=True, feature_layers=LAYERS)


@pytest.fixture(scope="module")
def forgetful(tiny_llama: Path) -> OpenVinoEngine:
    """The same engine, which begins every sequence from nothing."""
    return load_openvino(tiny_llama, SLOTS, invariant=True, feature_layers=LAYERS, prefix_cache=0)


def row_logits(engine: OpenVinoEngine, slot: int, past: int, rows: list[int]) -> Any:
    """[n, V] of rows that are not committed."""
    return engine.forward(make_step(Part(slot, past, rows)), np.arange(len(rows))).logits.copy()


def fresh(engine: OpenVinoEngine, text: list[int], past: int) -> tuple[Any, Array]:
    """(logits of the rows from `past` on, features of those before), computed from nothing in slot 0."""
    engine.release(np.arange(SLOTS))
    features = commit(engine, 0, text[:past])
    return row_logits(engine, 0, past, text[past:]), features


def test_logits_and_features_of_held_rows_are_those_of_computed_ones(
    engine: OpenVinoEngine, forgetful: OpenVinoEngine
) -> None:
    text = tokens(120)
    leave_first_turn(engine, text)
    opened = engine.open(opening((1, text)))
    assert opened.held.tolist() == [96]
    logits, features = fresh(forgetful, text, 96)
    assert np.array_equal(row_logits(engine, 1, 96, text[96:]), logits)
    assert np.array_equal(opened.features, features)
    assert opened.feature_count.tolist() == [96]


def test_prompts_share_what_they_have_in_common_and_no_more(engine: OpenVinoEngine, forgetful: OpenVinoEngine) -> None:
    common = tokens(70)
    texts = [common + tokens(30, seed) for seed in (1, 2)]
    commit(engine, 0, texts[0])  # runs on
    opened = engine.open(opening((3, texts[1]), (5, tokens(40, 9)), (2, texts[0])))
    assert opened.held.tolist() == [64, 0, 96]
    assert opened.feature_count.tolist() == [64, 0, 96]
    commit(engine, 3, texts[1], 64)
    for slot, text in ((3, texts[1]), (0, texts[0])):
        assert np.array_equal(row_logits(engine, slot, 100, [7, 8]), fresh(forgetful, [*text, 7, 8], 100)[0])


@pytest.mark.parametrize("back", [40, 64])
def test_a_rollback_into_shared_rows_changes_no_other_sequence(
    engine: OpenVinoEngine, forgetful: OpenVinoEngine, back: int
) -> None:
    text = tokens(100)
    commit(engine, 0, text)
    engine.open(opening((1, [*text[:96], 5])))
    other = text[:back] + tokens(60, 3)
    features = commit(engine, 1, other, back)
    expected, expected_features = fresh(forgetful, [*other, 1, 2], len(other))
    assert np.array_equal(row_logits(engine, 1, len(other), [1, 2]), expected)
    assert np.array_equal(features, expected_features[back:])
    assert np.array_equal(row_logits(engine, 0, 100, [7, 8]), fresh(forgetful, [*text, 7, 8], 100)[0])
    again = engine.open(opening((2, [*other, 1]), (3, [*text, 7])))
    assert again.held.tolist() == [96, 96]
    assert np.array_equal(again.features[:96], expected_features[:96])


def test_rows_beyond_the_limit_are_given_up(tiny_llama: Path) -> None:
    engine = load_openvino(tiny_llama, SLOTS, prefix_cache=2 * BLOCK)
    for slot in range(3):
        commit(engine, slot, tokens(40, slot))
    engine.release(np.arange(3))
    held = [int(engine.open(opening((4, [*tokens(40, seed), 1]))).held[0]) for seed in range(3)]
    assert held == [0, 32, 32]
    assert engine.describe().prefix_block == BLOCK


def test_without_a_cache_nothing_is_shared(tiny_llama: Path) -> None:
    engine = load_openvino(tiny_llama, SLOTS, prefix_cache=0)
    commit(engine, 0, tokens(40))
    opened = engine.open(opening((1, tokens(40))))
    assert (opened.held.tolist(), opened.features.shape) == ([0], (0, 0))
    assert engine.describe().prefix_block == 0


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([(SLOTS, [1])], "tensor 'slot' is 6 for sequence 0, limit 0 to 5"),
        ([(1, [1]), (1, [2])], "tensor 'slot' names slot 1 twice"),
        ([(1, [])], "tensor 'row_count' is 0 for sequence 0, minimum 1"),
        ([(1, [1] * 257)], "tensor 'row_count' is 257 for slot 1 after 0 rows, limit 256 in all"),
        ([(1, [VOCABULARY])], "tensor 'token_ids' is 300 in row 0, limit 0 to 299"),
    ],
)
def test_an_opening_that_breaks_the_contract_is_refused_and_changes_nothing(
    forgetful: OpenVinoEngine, prompts: list[tuple[int, list[int]]], message: str
) -> None:
    forgetful.release(np.arange(SLOTS))
    commit(forgetful, 1, [3, 4, 5])
    with pytest.raises(ProtocolError, match=message):
        forgetful.open(opening(*prompts))
    assert forgetful.slots.stored.tolist() == [0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("rows", [8192, 3 * BLOCK])
def test_chats_of_several_turns_are_answered_the_same_with_and_without(
    tiny_llama: Path, tmp_path: Path, forgetful: OpenVinoEngine, rows: int
) -> None:
    """Shared beginnings, drafts, rejected rows, cancelled requests; with few kept rows also eviction."""
    forgetful.release(np.arange(SLOTS))
    expected = converse(Recorder(forgetful), SLOTS, tmp_path)
    sharing = Recorder(load_openvino(tiny_llama, SLOTS, invariant=True, feature_layers=LAYERS, prefix_cache=rows))
    assert converse(sharing, SLOTS, tmp_path) == expected
    assert sharing.held > 8 * BLOCK
    assert min(sharing.accepted, sharing.rejected) > 10
    pool = sharing.engine.blocks.pool
    assert max(pool.users) == 0
    assert sorted([*pool.free, *pool.kept]) == list(range(pool.count))
