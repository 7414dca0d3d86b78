"""A TensorRT-LLM target lets sequences begin with blocks that others left: same tokens, same features, no pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.drafters.engine import NetworkDrafter
from python_backend.protocol import Context, DrafterStep, Part, ProtocolError
from tests.support.checkpoints import VOCABULARY, make_step
from tests.support.drafters import save_drafter
from tests.support.prefixes import Recorder, commit, converse, leave_first_turn, opening, tokens

Build = Callable[..., Any]
SLOTS, LAYERS, BLOCK = 6, (0, 3), 16
CLOSE = {"rtol": 1e-3, "atol": 1e-3}  # rows of passes of other shapes


def make(build: Build, **target: Any) -> Any:
    return build(captured=LAYERS, feature_layers=LAYERS, coordinator={"max_sequences": SLOTS}, **target)


@pytest.fixture
def engine(build: Build) -> Any:
    return make(build)


@pytest.fixture(scope="module")
def forgetful(build: Build) -> Any:
    """The same engine, which begins every sequence from nothing."""
    return make(build, prefix_cache=0)


def next_tokens(engine: Any, slot: int, text: list[int], past: int) -> list[int]:
    """What follows a prompt of which the slot holds `past` rows, greedily."""
    result, output = engine.step(make_step(Part(slot, past, text[past:]))), []
    for _ in range(8):
        output.append(int(result.next_token[0]))
        result = engine.step(make_step(Part(slot, len(text) + len(output) - 1, output[-1:])))
    return output


def test_held_rows_answer_as_computed_ones(engine: Any, forgetful: Any) -> None:
    text = tokens(120)
    leave_first_turn(engine, text)
    opened = engine.open(opening((1, text)))
    assert (opened.held.tolist(), opened.feature_count.tolist()) == ([96], [96])
    np.testing.assert_allclose(opened.features, commit(forgetful, 0, text)[:96], **CLOSE)
    assert next_tokens(engine, 1, text, 96) == next_tokens(forgetful, 0, text, 0)


def test_prompts_share_what_they_have_in_common_and_no_more(engine: Any, forgetful: Any) -> None:
    common = tokens(70)
    texts = [common + tokens(30, seed) for seed in (1, 2)]
    commit(engine, 0, texts[0])  # runs on
    opened = engine.open(opening((3, texts[1]), (5, tokens(40, 9)), (2, texts[0])))
    assert opened.held.tolist() == opened.feature_count.tolist() == [64, 0, 96]
    features = commit(forgetful, 0, texts[1])
    np.testing.assert_allclose(opened.features[:64], features[:64], **CLOSE)
    for slot, text, past in ((3, texts[1], 64), (2, texts[0], 96)):
        assert next_tokens(engine, slot, text, past) == next_tokens(forgetful, 0, text, 0)


@pytest.mark.parametrize("back", [40, 64])
def test_a_rollback_into_shared_rows_changes_no_other_sequence(engine: Any, forgetful: Any, back: int) -> None:
    text = tokens(100)
    commit(engine, 0, text)
    engine.open(opening((1, [*text[:96], 5])))
    other = text[:back] + tokens(60, 3)
    features = commit(engine, 1, other, back)
    expected = commit(forgetful, 0, other)
    np.testing.assert_allclose(features, expected[back:], **CLOSE)
    again = engine.open(opening((2, [*other, 1]), (3, [*text, 7])))
    held = len(other) // BLOCK * BLOCK
    assert again.held.tolist() == [held, 96]
    np.testing.assert_allclose(again.features[:held], expected[:held], **CLOSE)
    np.testing.assert_allclose(again.features[held:], commit(forgetful, 0, text)[:96], **CLOSE)
    assert next_tokens(engine, 2, [*other, 1], held) == next_tokens(forgetful, 0, [*other, 1], 0)
    assert next_tokens(engine, 0, [*text, 7], 100) == next_tokens(forgetful, 0, [*text, 7], 0)


def test_rows_whose_features_nobody_read_are_held_for_those_who_read_none_either(engine: Any) -> None:
    text = tokens(100)
    commit(engine, 0, text, unread=np.array([0], dtype=np.int32))
    reader, silent = opening((1, text)), opening((2, text))
    object.__setattr__(silent, "unread", np.array([2], dtype=np.int32))
    assert engine.open(reader).held.tolist() == [0]
    opened = engine.open(silent)
    assert (opened.held.tolist(), opened.feature_count.tolist(), opened.features.size) == ([96], [0], 0)


def test_features_that_were_given_up_end_what_is_held(build: Build) -> None:
    engine = make(build, prefix_cache=2 * BLOCK)  # room for 2 blocks, one a slot and a step's 512 rows
    room = len(engine.kept.memory)
    texts = [tokens(255, seed) for seed in range(SLOTS - 1)]
    assert room < len(texts) * 255 // BLOCK
    for slot, text in enumerate(texts):
        commit(engine, slot, text)
    assert [int(engine.open(opening((SLOTS - 1, texts[i]))).held[0]) for i in (0, SLOTS - 2)] == [0, 240]


def test_without_a_cache_nothing_is_shared(forgetful: Any) -> None:
    commit(forgetful, 0, tokens(40))
    opened = forgetful.open(opening((1, tokens(40))))
    assert (opened.held.tolist(), opened.features.shape) == ([0], (0, 0))
    assert forgetful.describe().prefix_block == 0


def test_a_prompt_that_breaks_the_contract_is_refused(engine: Any) -> None:
    with pytest.raises(ProtocolError, match=f"'token_ids' is {VOCABULARY} in row 0"):
        engine.open(opening((1, [VOCABULARY])))


@pytest.fixture(scope="module")
def expected_chats(build: Build, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    return converse(Recorder(make(build, prefix_cache=0)), SLOTS, tmp_path_factory.mktemp("chats"))


@pytest.mark.parametrize("rows", [8192, 3 * BLOCK])
def test_chats_of_several_turns_are_answered_the_same_with_and_without(
    build: Build, tmp_path: Path, expected_chats: list[list[int]], rows: int
) -> None:
    """Shared beginnings, drafts, rejected rows, cancelled requests; with few kept rows also eviction."""
    sharing = Recorder(make(build, prefix_cache=rows))
    assert converse(sharing, SLOTS, tmp_path) == expected_chats
    assert sharing.held > 8 * BLOCK
    assert min(sharing.accepted, sharing.rejected) > 10
    pool = sharing.engine.blocks.pool
    assert max(pool.users) == 0
    assert sorted([*pool.free, *pool.kept]) == list(range(pool.count))


def test_a_drafter_in_the_targets_process_reads_the_features_of_held_rows(
    build: Build, tmp_path: Path, tiny_llama: Path
) -> None:
    folder = save_drafter("mtp", tmp_path, tiny_llama, (3,))
    text = tokens(100)

    def drafts(target: Any, held: int) -> list[int]:
        store = FeatureStore(SLOTS)
        hosting = HostingTarget(target, store)
        drafter = HostedDrafter(NetworkDrafter("mtp", folder, tiny_llama, SLOTS, 256), store, np.arange(48, 96))
        if held:
            assert hosting.open(opening((1, text))).held.tolist() == [held]
        hosting.step(make_step(Part(1, held, text[held:])))
        return drafter.step(DrafterStep.of([Context(1, 0, text[1:])], 3)).draft_ids.tolist()

    sharing = make(build)
    commit(sharing, 4, text)
    assert drafts(sharing, 96) == drafts(make(build, prefix_cache=0), 0)
