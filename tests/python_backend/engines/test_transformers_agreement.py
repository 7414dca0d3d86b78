"""The PyTorch engine computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from tests.support.checkpoints import MODELS, VOCABULARY, load_engine, load_reference, make_step, save_tiny

ROUNDING = 1e-3  # top-two gap, in logits, below which float32 may order them either way; logits reach about 20
ROW_ERROR = 1e-3  # largest difference of a row over its largest logit
PROMPTS = [
    "Tell me a story about a clock that runs backwards.",
    "What is the capital of France, and why is it famous?",
    "Write a Python function that reverses a list.",
    "def fibonacci(n):\n    ",
    "Solve 3x + 5 = 20 and show your work.",
    "List five uses of vinegar.",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into Spanish and German.",
    "Write an SQL query that counts users by country.",
    "What is 17 times 23?",
    "Give me a recipe for pancakes.",
    "Who wrote Don Quixote?",
    "Write a haiku about rain.",
    "for (int i = 0; i < 10; i++) {",
    "How do vaccines work?",
    "A train travels 120 km in 1.5 hours. What is its speed?",
    "Summarise the plot of Romeo and Juliet.",
    "Why is the sky blue?",
    "Write a class for a stack in Java.",
    "Name three mountains in Asia.",
]


def all_logits(engine: TorchEngine, *parts: Part) -> Any:
    """[R, V] logits of every row, also of those that a step would not need."""
    with torch.inference_mode():
        return engine.network.head(engine.forward(make_step(*parts)).hidden).float().numpy()


def reference_logits(reference: Any, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return reference(torch.tensor([tokens])).logits[0].float().numpy()


def row_error(actual: Any, expected: Any) -> float:
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


@pytest.mark.parametrize("kind", MODELS)
def test_tiny_models_have_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 200).tolist()
    engine = load_engine(folder)
    actual = np.concatenate([all_logits(engine, Part(5, 0, tokens[:90])), all_logits(engine, Part(5, 90, tokens[90:]))])
    assert row_error(actual, reference_logits(load_reference(folder), tokens)) < 1e-4


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 100).tolist()
    exact = reference_logits(load_reference(folder), tokens)
    theirs = row_error(reference_logits(load_reference(folder, torch.bfloat16), tokens), exact)
    ours = row_error(all_logits(load_engine(folder, dtype="bfloat16"), Part(0, 0, tokens)), exact)
    assert 0 < ours < 2 * theirs


@pytest.fixture(scope="module")
def pair(embedded: Path) -> tuple[TorchEngine, Any]:
    return load_engine(embedded, slots=len(PROMPTS), max_length=512), load_reference(embedded)


def test_the_embedded_model_has_the_logits_of_transformers(embedded: Path, pair: tuple[TorchEngine, Any]) -> None:
    engine, reference = pair
    tokens = load_tokenizer(embedded)("\n\n".join(PROMPTS))["input_ids"][:300]
    assert len(tokens) >= 200
    first = all_logits(engine, Part(4, 0, tokens[:150]))
    rest = [all_logits(engine, Part(4, at, tokens[at : at + 30])) for at in range(150, len(tokens), 30)]
    assert row_error(np.concatenate([first, *rest]), reference_logits(reference, tokens)) < ROW_ERROR


def test_the_embedded_model_decodes_the_greedy_tokens_of_transformers(
    embedded: Path, pair: tuple[TorchEngine, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """20 prompts x 64 tokens, decoded as one batch. Transformers is asked for its choice after each of our prefixes,
    so that a near-tie in one place does not hide the rest of a text."""
    engine, reference = pair
    tokenizer = load_tokenizer(embedded)
    texts = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": p}], add_generation_prompt=True, return_dict=False
            )
        )
        for p in PROMPTS
    ]
    lengths = [len(text) for text in texts]
    decode(engine, texts, 64)

    near_ties = flips = 0
    for text, length in zip(texts, lengths, strict=True):
        expected = reference_logits(reference, text)[length - 1 : -1]
        top_two = np.partition(expected, -2)[:, -2:]
        near = top_two[:, 1] - top_two[:, 0] < ROUNDING
        different = expected.argmax(axis=1) != np.array(text[length:])
        assert not (different & ~near).any()
        near_ties += int(near.sum())
        flips += int(different.sum())
    with capsys.disabled():
        print(f"\n{len(PROMPTS) * 64} greedy tokens: {near_ties} near-ties (gap below {ROUNDING}), {flips} differ")


def decode(engine: TorchEngine, texts: list[list[int]], count: int) -> None:
    """Append `count` greedy tokens to each text."""
    step = make_step(*(Part(i, 0, text) for i, text in enumerate(texts)))
    for _ in range(count):
        for text, token in zip(texts, engine.step(step).next_token, strict=True):
            text.append(int(token))
        step = make_step(*(Part(i, len(text) - 1, text[-1:]) for i, text in enumerate(texts)))
