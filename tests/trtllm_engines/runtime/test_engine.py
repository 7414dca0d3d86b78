"""A TensorRT-LLM target, run on the fake Session, computes what the PyTorch engine computes, for any packing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from python_backend.engine import EngineError
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part, ProtocolError
from python_backend.settings import TargetSettings
from tests.support.checkpoints import MODELS, VOCABULARY, load_engine, make_step, save_tiny

SLOTS, MAX_LENGTH = 6, 100
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def engines(build: Build, tiny_llama: Path) -> tuple[Any, TorchEngine]:
    """The engine under test, its unused KV rows full of junk, and one that computes everything from scratch."""
    ours = build(coordinator={"max_sequences": SLOTS, "max_length": MAX_LENGTH})
    ours.passes.pool.fill_(1e3)
    return ours, load_engine(tiny_llama, 1, MAX_LENGTH)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def all_logits(engine: Any, *parts: Part) -> Any:
    """Logits of every row of a step that keeps all of them."""
    step = make_step(*parts)
    engine.slots.begin(step)
    wanted = np.arange(len(step.token_ids))
    logits = engine.passes.run(step, wanted, engine.lay_out(step, wanted))
    engine.slots.commit(step, step.draft_count)
    return logits.numpy().copy()


def from_scratch(engine: TorchEngine, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return engine.network.head(engine.forward(make_step(Part(0, 0, tokens))).hidden).numpy()


@settings(max_examples=40)
@given(data=st.data())
def test_ragged_steps_with_rollback_and_release_equal_recomputation(
    engines: tuple[Any, TorchEngine], data: st.DataObject
) -> None:
    engine, scratch = engines
    engine.release(np.arange(SLOTS))
    stored: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        if data.draw(st.booleans(), label="release"):
            gone = data.draw(st.integers(0, SLOTS - 1))
            engine.release(np.array([gone]))
            stored[gone] = []
        parts = []
        for slot in data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]:
            past = data.draw(st.integers(max(0, len(stored[slot]) - 40), len(stored[slot])), label="past")
            rows = min(
                data.draw(st.integers(1, 40), label="rows"), MAX_LENGTH - past, 48 - sum(len(p.tokens) for p in parts)
            )
            if rows <= 0:
                continue
            tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=rows, max_size=rows))
            stored[slot] = stored[slot][:past] + tokens
            parts.append(Part(slot, past, tokens))
        if not parts:
            continue
        actual = all_logits(engine, *parts)
        expected = np.concatenate([from_scratch(scratch, stored[p.slot])[-len(p.tokens) :] for p in parts])
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
    engine.release(np.arange(SLOTS))
    assert len(engine.blocks.pool.free) == engine.blocks.pool.count


@pytest.mark.parametrize("kind", MODELS)
def test_steps_answer_as_the_torch_engine_does(build: Build, tmp_path: Path, kind: str) -> None:
    """Acceptance, next tokens, features and log probabilities, with drafts, chunks, two slots and sampling."""
    folder, layers = save_tiny(kind, tmp_path), (3, 0, 1)
    ours = build(captured=(0, 1, 3), checkpoint=folder, feature_layers=layers)
    theirs = load_engine(folder, feature_layers=layers)
    prompt, other = random_tokens(90), random_tokens(5, 9)
    right = int(from_scratch(load_engine(folder), prompt)[-1].argmax())
    ask = {
        "return_log_probs": np.array([True, False]),
        "temperature": np.array([1, 0], dtype=np.float32),
        "seed": np.array([2**63 + 5, 0], dtype=np.uint64),
        "top_p": np.array([0.9, 0], dtype=np.float32),
    }
    for step in (
        make_step(Part(0, 0, prompt[:80], sample=False)),
        make_step(Part(3, 0, other), Part(0, 80, [*prompt[80:], right, 0], drafts=2), **ask),
        make_step(Part(3, 5, [1]), Part(0, 91, [2, 3, 4], drafts=2), **ask),
    ):
        actual, expected = ours.step(step), theirs.step(step)
        for name in ("accepted", "next_token", "feature_count", "log_prob_count"):
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
        np.testing.assert_allclose(actual.features, expected.features, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=1e-3, atol=1e-3)
    assert (ours.slots.stored == theirs.slots.stored).all()


def test_features_can_stay_on_the_device(build: Build) -> None:
    engines = [build(captured=(0, 3), feature_layers=(3, 0)) for _ in range(2)]
    step = make_step(Part(0, 0, random_tokens(20)), Part(1, 0, random_tokens(9, 2), sample=False))
    result, features = engines[0].step_on_device(step)
    assert result.features.shape == (0, 0)
    assert result.feature_count.tolist() == [20, 9]
    engines[0].step_on_device(make_step(Part(0, 20, [1, 2])))  # the next pass leaves them alone
    np.testing.assert_array_equal(features.numpy(), engines[1].step(step).features)


def test_a_warm_engine_starts_with_empty_slots_and_all_blocks_free(build: Build) -> None:
    engine = build()
    assert not engine.slots.stored.any()
    assert len(engine.blocks.pool.free) == engine.blocks.pool.count
    assert engine.passes.session._session.passes == 2


def test_shapes_are_told_only_when_they_change(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, told = build(), []
    session = engine.passes.session._session
    infer = session.infer_shapes
    monkeypatch.setattr(session, "infer_shapes", lambda inputs: told.append(1) or infer(inputs))
    engine.step(make_step(Part(0, 0, [1, 2])))
    engine.step(make_step(Part(0, 2, [3])))
    engine.step(make_step(Part(0, 3, [4])))
    assert len(told) == 2


def test_a_pass_that_tensorrt_does_not_take_is_an_engine_error(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build()
    monkeypatch.setattr(engine.passes.session._session, "run", lambda *_: False)
    with pytest.raises(EngineError, match="TensorRT did not take a pass"):
        engine.step(make_step(Part(0, 0, [1, 2])))


def test_a_description_names_the_release_and_the_checkpoint(build: Build, tiny_llama: Path) -> None:
    ours, theirs = build().describe(), load_engine(tiny_llama).describe()
    assert (ours.engine, ours.engine_version, ours.dtype) == ("tensorrt_llm", "1.2.1", "float32")
    assert (ours.weights_sha256, ours.vocabulary_size) == (theirs.weights_sha256, theirs.vocabulary_size)


def test_a_step_beyond_the_engines_rows_is_refused(build: Build) -> None:
    engine = build(limits={"max_num_tokens": 80}, coordinator={"prefill_rows": 16})
    with pytest.raises(ProtocolError, match=r"'token_ids' has 81 rows, limit 80: max_num_tokens of the engine"):
        engine.step(make_step(Part(0, 0, [1] * 81)))


@pytest.mark.parametrize(
    ("coordinator", "message"),
    [
        ({"max_sequences": 9}, "coordinator.max_sequences is 9, limit 8: max_batch_size of the engine"),
        ({"max_length": 300}, "coordinator.max_length is 300, limit 256: max_seq_len of the engine"),
        ({"depth": 8}, "coordinator.depth is 8, limit 7: max_draft_len of the engine"),
        ({"prefill_rows": 449}, r"prefill_rows is 513, limit 512: max_num_tokens of the engine"),
    ],
)
def test_settings_beyond_the_engine_are_refused(build: Build, coordinator: dict[str, int], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        build(coordinator=coordinator)


@pytest.mark.parametrize(
    "target",
    [
        {"engine": "tensorrt_llm"},
        {"engine": "torch", "engine_folder": Path("x")},
        {"engine": "tensorrt_llm", "engine_folder": Path("x"), "invariant": True},
    ],
)
def test_settings_that_an_engine_does_not_have_are_refused(target: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"target\.engine"):
        TargetSettings(**target)
