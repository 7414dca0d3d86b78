"""On the embedded model: exact weights give the reference's logits and text, 8-bit weights come close."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.checkpoints import quantised
from python_backend.checkpoints.decoder import load_weights
from python_backend.checkpoints.quantised import Blocks
from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from tests.support.checkpoints import load_engine, make_step
from tests.support.openvino_targets import all_logits, load_openvino

NEAR_TIE = 1e-3  # top-two gap, in logits, below which float32 may order them either way
PROMPTS = (
    "Tell me a story about a clock that runs backwards.",
    "Write a Python function that reverses a list.",
    "Solve 3x + 5 = 20 and show your work.",
    "List five uses of vinegar.",
)
POSITIONS, OUTPUT = 300, 100


@pytest.fixture(scope="module")
def reference(embedded: Path) -> TorchEngine:
    return load_engine(embedded, len(PROMPTS), 512)


@pytest.fixture(scope="module")
def text(embedded: Path) -> list[int]:
    tokens: list[int] = load_tokenizer(embedded)(" ".join(PROMPTS) * 8)["input_ids"][:POSITIONS]
    assert len(tokens) == POSITIONS
    return tokens


def reference_logits(reference: TorchEngine, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return reference.network.head(reference.forward(make_step(Part(0, 0, tokens))).hidden).numpy()


def test_the_codes_are_the_weights(embedded: Path) -> None:
    codes, floats = quantised.load(embedded), load_weights(embedded)
    assert codes.keys() == floats.keys()
    assert sum(isinstance(w, Blocks) and w.code.dtype == np.uint8 for w in codes.values()) == 30 * 7
    for name, weight in codes.items():
        dense = weight.dense() if isinstance(weight, Blocks) else weight
        expected = floats[name].numpy()
        np.testing.assert_allclose(dense, expected, rtol=0, atol=1e-6 * np.abs(expected).max(), err_msg=name)


def test_exact_weights_have_the_logits_of_the_reference(
    embedded: Path, reference: TorchEngine, text: list[int]
) -> None:
    engine = load_openvino(embedded, 2, 512)
    actual = [all_logits(engine, Part(1, at, text[at : at + 60])) for at in range(0, POSITIONS - 30, 60)]
    difference = np.abs(np.concatenate(actual) - reference_logits(reference, text))
    assert difference.max() < 1e-3
    assert difference.mean() < 1e-4


def test_8_bit_weights_are_another_model_close_to_the_reference(
    embedded: Path, reference: TorchEngine, text: list[int]
) -> None:
    actual = all_logits(load_openvino(embedded, 1, 512, quantization="int8-dynamic", invariant=True), Part(0, 0, text))
    expected = reference_logits(reference, text)
    assert 0.01 < np.abs(actual - expected).mean() < 0.5
    assert (actual.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.9


def test_400_greedy_tokens_are_those_of_the_reference(embedded: Path, reference: TorchEngine) -> None:
    """The reference is asked for its choice after each of our prefixes: a near-tie does not hide what follows."""
    tokenizer = load_tokenizer(embedded)
    engine = load_openvino(embedded, len(PROMPTS), 512)
    texts = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": p}], add_generation_prompt=True, return_dict=False
            )
        )
        for p in PROMPTS
    ]
    lengths = [len(t) for t in texts]
    step = make_step(*(Part(i, 0, t) for i, t in enumerate(texts)))
    for _ in range(OUTPUT):
        for t, token in zip(texts, engine.step(step).next_token, strict=True):
            t.append(int(token))
        step = make_step(*(Part(i, len(t) - 1, t[-1:]) for i, t in enumerate(texts)))
    for t, length in zip(texts, lengths, strict=True):
        expected = reference_logits(reference, t)[length - 1 : -1]
        top_two = np.partition(expected, -2)[:, -2:]
        clear = top_two[:, 1] - top_two[:, 0] >= NEAR_TIE
        assert (expected.argmax(axis=1) == np.array(t[length:]))[clear].all()
        assert clear.mean() > 0.95
