"""Ragged rows, rollback and chunks do not change what the network computes, and steps commit what they accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engines.torch_attention import GAP, JOINT_ROWS, join_runs, split_runs
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from tests.support.checkpoints import VOCABULARY, load_engine, load_reference, make_step

SLOTS, MAX_LENGTH = 6, 64
JUNK = 1e3  # in every row that was never written: whatever reads one is far off


@pytest.fixture(scope="module", params=[False, True], ids=["runs of a CPU", "runs of a GPU"])
def engines(request: pytest.FixtureRequest, tiny_llama: Path) -> tuple[TorchEngine, TorchEngine]:
    """The engine under test, and one that computes everything from scratch."""
    engine = load_engine(tiny_llama, SLOTS, MAX_LENGTH)
    engine.few_runs = request.param
    for layer in engine.cache.layers:
        layer.fill_(JUNK)
    return engine, load_engine(tiny_llama, 1, MAX_LENGTH)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def hidden(engine: TorchEngine, *parts: Part) -> Any:
    return engine.forward(make_step(*parts)).hidden.numpy()


def from_scratch(scratch: TorchEngine, tokens: list[int], rows: int) -> Any:
    return hidden(scratch, Part(0, 0, tokens))[-rows:]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ragged_steps_with_rollback_equal_recomputation_from_scratch(
    engines: tuple[TorchEngine, TorchEngine], data: st.DataObject
) -> None:
    engine, scratch = engines
    stored: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        parts = []
        for slot in data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]:
            past = data.draw(st.integers(max(0, len(stored[slot]) - 5), len(stored[slot])), label="past")
            rows = data.draw(st.integers(1, JOINT_ROWS + 8), label="rows")
            rows = min(rows, MAX_LENGTH - past)
            if rows == 0:
                continue
            tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=rows, max_size=rows))
            stored[slot] = stored[slot][:past] + tokens
            parts.append(Part(slot, past, tokens))
        if not parts:
            continue
        actual = hidden(engine, *parts)
        expected = np.concatenate([from_scratch(scratch, stored[p.slot], len(p.tokens)) for p in parts])
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, 49)), seed=st.integers(0, 99))
def test_a_prompt_in_chunks_equals_the_prompt_at_once(
    engines: tuple[TorchEngine, TorchEngine], cuts: set[int], seed: int
) -> None:
    engine, scratch = engines
    prompt = random_tokens(50, seed)
    ends = [*sorted(cuts), 50]
    chunks = [
        hidden(engine, Part(2, start, prompt[start:end])) for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(chunks), hidden(scratch, Part(0, 0, prompt)), rtol=1e-4, atol=1e-4)


def test_a_prompt_chunk_beside_decoding_rows_changes_neither(engines: tuple[TorchEngine, TorchEngine]) -> None:
    engine, scratch = engines
    long, short = random_tokens(40, 1), random_tokens(9, 2)
    hidden(engine, Part(1, 0, short[:8]), Part(2, 0, long[:10]))
    together = hidden(engine, Part(2, 10, long[10:]), Part(1, 8, short[8:]))
    np.testing.assert_allclose(together[:30], from_scratch(scratch, long, 30), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(together[30:], from_scratch(scratch, short, 1), rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(
    slots=st.sets(st.integers(0, 40), min_size=1, max_size=32),
    data=st.data(),
)
def test_runs_cover_every_sequence_once_and_only_neighbouring_slots(slots: set[int], data: st.DataObject) -> None:
    slot = np.array(sorted(slots))
    sizes = st.lists(st.integers(0, 2000), min_size=len(slot), max_size=len(slot))
    past, count = np.array(data.draw(sizes)), np.array(data.draw(sizes)) % 40 + 1
    runs = split_runs(slot, past, count)
    assert [i for first, last in runs for i in range(first, last)] == list(range(len(slot)))
    for first, last in runs:
        assert slot[last - 1] - slot[first] == last - 1 - first
        assert last - first == 1 or count[first:last].max() <= JOINT_ROWS


@settings(deadline=None)
@given(slots=st.sets(st.integers(0, 40), min_size=1, max_size=32), data=st.data())
def test_on_a_gpu_short_sequences_share_runs_across_small_gaps(slots: set[int], data: st.DataObject) -> None:
    count = np.array(data.draw(st.lists(st.integers(1, 30), min_size=len(slots), max_size=len(slots))))
    order = np.lexsort((sorted(slots), count > JOINT_ROWS))
    slot, count = np.array(sorted(slots))[order], count[order]
    runs = join_runs(slot, count)
    assert [i for first, last in runs for i in range(first, last)] == list(range(len(slot)))
    for first, last in runs:
        assert last - first == 1 or count[first:last].max() <= JOINT_ROWS
        assert (np.diff(slot[first:last]) <= GAP).all()
    short = slot[count <= JOINT_ROWS]
    assert len(runs) == (np.diff(short) > GAP).sum() + bool(len(short)) + (count > JOINT_ROWS).sum()


def greedy(reference: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_right_drafts_are_accepted_and_the_first_wrong_one_is_replaced(tiny_llama: Path) -> None:
    engine, prompt = load_engine(tiny_llama), random_tokens(7)
    expected = greedy(load_reference(tiny_llama), prompt, 6)

    first = engine.step(make_step(Part(0, 0, prompt)))
    assert first.next_token.tolist() == expected[:1]

    wrong = (expected[3] + 1) % VOCABULARY
    verify = engine.step(make_step(Part(0, 7, [*expected[:3], wrong, expected[4]], drafts=4)))
    assert (verify.accepted[0], verify.next_token[0]) == (2, expected[3])

    after = engine.step(make_step(Part(0, 10, expected[3:5], drafts=1)))
    assert (after.accepted[0], after.next_token[0]) == (1, expected[5])


def test_features_are_the_captured_layers_of_the_committed_rows(tiny_llama: Path) -> None:
    engine = load_engine(tiny_llama, feature_layers=(3, 0, 1))
    reference = load_reference(tiny_llama)
    prompt, other = random_tokens(7), random_tokens(5, 9)
    drafts = [greedy(reference, prompt, 1)[0], VOCABULARY - 1]

    chunk = engine.step(make_step(Part(0, 0, prompt[:4], sample=False), Part(3, 0, other)))
    assert chunk.feature_count.tolist() == [4, 5]
    assert chunk.next_token[0] == -1
    last = engine.step(make_step(Part(3, 5, [1], sample=False), Part(0, 4, [*prompt[4:], *drafts], drafts=2)))
    assert last.feature_count.tolist() == [1, 3 + int(last.accepted[1])]
    assert last.accepted[1] == 1

    with torch.inference_mode():
        states = reference(torch.tensor([[*prompt, drafts[0]]]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[i][0] for i in (3, 1, 2)], dim=1).numpy()  # states[i + 1] is the one after layer i
    actual = np.concatenate([chunk.features[:4], last.features[1:]])
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    assert engine.describe().feature_size == actual.shape[1]


def test_a_step_without_sampled_sequences_returns_no_token(tiny_llama: Path) -> None:
    result = load_engine(tiny_llama).step(make_step(Part(0, 0, [1, 2, 3], sample=False)))
    result.check()
    assert (result.next_token[0], result.accepted[0], len(result.log_probs)) == (-1, 0, 0)
    assert result.features.shape == (0, 0)


def test_a_released_slot_starts_again_from_nothing(tiny_llama: Path) -> None:
    engine, prompt = load_engine(tiny_llama), random_tokens(7)
    first = engine.step(make_step(Part(0, 0, prompt)))
    engine.release(np.array([0], dtype=np.int32))
    assert engine.step(make_step(Part(0, 0, prompt))).next_token[0] == first.next_token[0]


def test_settings_beyond_the_model_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match=r"max_length is 512, limit 256"):
        load_engine(tiny_llama, max_length=512)
    with pytest.raises(ValueError, match=r"feature_layers names layer 4, limit 0 to 3"):
        load_engine(tiny_llama, feature_layers=(0, 4))
