"""The OpenVINO engine computes what the PyTorch engine computes, for any packing, and keeps the same contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.engines.openvino_engine import OpenVinoEngine
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part, ProtocolError
from python_backend.settings import TargetSettings
from tests.support.checkpoints import DENSE, VOCABULARY, load_engine, make_step, save_tiny
from tests.support.openvino_targets import all_logits, load_openvino

SLOTS, MAX_LENGTH = 6, 100


@pytest.fixture(scope="module")
def engines(tiny_llama: Path) -> tuple[OpenVinoEngine, TorchEngine]:
    """The engine under test, and one that computes everything from scratch."""
    return load_openvino(tiny_llama, SLOTS, MAX_LENGTH), load_engine(tiny_llama, 1, MAX_LENGTH)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def from_scratch(engine: TorchEngine, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return engine.network.head(engine.forward(make_step(Part(0, 0, tokens))).hidden).numpy()


@pytest.mark.parametrize("kind", DENSE)
def test_tiny_models_have_the_logits_of_the_torch_engine(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)
    tokens = random_tokens(200, 1)
    engine = load_openvino(folder)
    actual = [all_logits(engine, Part(5, 0, tokens[:90])), all_logits(engine, Part(5, 90, tokens[90:]))]
    expected = from_scratch(load_engine(folder), tokens)
    np.testing.assert_allclose(np.concatenate(actual), expected, atol=1e-4 * np.abs(expected).max())


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has experts, which target\.engine openvino has not"):
        load_openvino(save_tiny("qwen3_moe", tmp_path))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_ragged_steps_with_rollback_and_release_equal_recomputation_and_leak_no_block(
    engines: tuple[OpenVinoEngine, TorchEngine], data: st.DataObject
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
            rows = min(data.draw(st.integers(1, 40), label="rows"), MAX_LENGTH - past)
            if rows == 0:
                continue
            tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=rows, max_size=rows))
            stored[slot] = stored[slot][:past] + tokens
            parts.append(Part(slot, past, tokens))
        if not parts:
            continue
        actual = all_logits(engine, *parts)
        expected = np.concatenate([from_scratch(scratch, stored[p.slot])[-len(p.tokens) :] for p in parts])
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
        owned = engine.blocks.indices(np.arange(SLOTS)).indices.tolist()
        assert sorted(owned + engine.blocks.pool.free) == list(range(engine.blocks.pool.count))
    engine.release(np.arange(SLOTS))
    assert len(engine.blocks.pool.free) == engine.blocks.pool.count


@pytest.mark.parametrize("invariant", [False, True])
def test_steps_answer_as_the_torch_engine_does(tiny_llama: Path, invariant: bool) -> None:
    """Acceptance, next tokens, features and log probabilities, with drafts, chunks and two slots."""
    layers = (3, 0, 1)
    ours = load_openvino(tiny_llama, feature_layers=layers, invariant=invariant)
    theirs = load_engine(tiny_llama, feature_layers=layers)
    prompt, other = random_tokens(90), random_tokens(5, 9)
    right = int(from_scratch(load_engine(tiny_llama), prompt)[-1].argmax())
    ask = {"return_log_probs": np.array([True, False])}
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


def test_a_description_names_engine_and_arithmetic(tiny_llama: Path) -> None:
    plain, other = load_openvino(tiny_llama).describe(), load_engine(tiny_llama).describe()
    assert (plain.engine, plain.dtype) == ("openvino", "exact")
    assert (plain.weights_sha256, plain.vocabulary_size) == (other.weights_sha256, other.vocabulary_size)
    assert load_openvino(tiny_llama, quantization="int8-dynamic", invariant=True).describe().dtype == (
        "int8-dynamic, invariant"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(SLOTS, 0, [1]), "tensor 'slot' is 6 for sequence 1, limit 0 to 5"),
        (Part(1, 4, [1]), "tensor 'past_length' is 4 for slot 1, limit 3: more than the slot holds"),
        (Part(1, 3, [1] * 98), "tensor 'row_count' is 98 for slot 1 after 3 rows, limit 100 in all"),
        (Part(1, 3, [VOCABULARY]), "tensor 'token_ids' is 300 in row 1, limit 0 to 299"),
    ],
)
def test_a_step_that_breaks_the_contract_is_refused_and_changes_nothing(
    engines: tuple[OpenVinoEngine, TorchEngine], part: Part, message: str
) -> None:
    engine, _ = engines
    engine.release(np.arange(SLOTS))
    engine.step(make_step(Part(1, 0, [5, 6, 7])))
    held = engine.blocks.held.copy()
    with pytest.raises(ProtocolError, match=message):
        engine.step(make_step(Part(0, 0, [1]), part))
    assert (engine.blocks.held == held).all()
    assert engine.slots.stored.tolist() == [0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "target",
    [
        {"engine": "openvino", "dtype": "bfloat16"},
        {"engine": "openvino", "device": "cuda"},
        {"engine": "torch", "quantization": "int8-dynamic", "invariant": True},
        {"engine": "torch", "invariant": True},
    ],
)
def test_settings_that_an_engine_does_not_have_are_refused(target: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"target\.engine (torch|openvino)"):
        TargetSettings(**target)
