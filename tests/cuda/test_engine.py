"""The engine on the device computes what it computes on a CPU, and what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from tests.cuda.conftest import MAX_LENGTH
from tests.python_backend.engines.test_transformers_agreement import PROMPTS, ROUNDING, decode, row_error
from tests.support.checkpoints import load_engine, load_reference, make_step

TEXTS, TOKENS = 4, 200
Note = Callable[[str, Any], None]


class Text:
    """A prompt and what the engine made of it."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt_length, self.tokens = len(prompt), list(prompt)

    def choices(self, logits: Any) -> Any:
        """The rows [TOKENS, V] that decided the output."""
        return logits[self.prompt_length - 1 : -1]


@pytest.fixture(scope="module")
def texts(engine: TorchEngine, embedded: Path) -> list[Text]:
    """Greedy texts of the engine on the device, decoded as one batch."""
    tokenizer = load_tokenizer(embedded)
    found = [Text(tokenizer(f"{prompt}\n")["input_ids"]) for prompt in PROMPTS[:TEXTS]]
    decode(engine, [text.tokens for text in found], TOKENS)
    return found


@torch.inference_mode()
def engine_logits(engine: TorchEngine, tokens: list[int]) -> Any:
    """[R, V] float32 of a text at once."""
    return engine.network.head(engine.forward(make_step(Part(0, 0, tokens))).hidden).float().cpu().numpy()


@torch.inference_mode()
def reference_logits(reference: Any, tokens: list[int]) -> Any:
    return reference(torch.tensor([tokens], device=reference.device)).logits[0].float().cpu().numpy()


def judge(texts: list[Text], logits: Callable[[list[int]], Any], engine: TorchEngine) -> dict[str, Any]:
    """How the engine's greedy tokens and logits compare with another's over the same texts."""
    found = {"tokens": 0, "near-ties": 0, "tokens that differ": 0, "of them no near-tie": 0}
    absolute = relative = 0.0
    for text in texts:
        expected, actual = logits(text.tokens), engine_logits(engine, text.tokens)
        absolute = max(absolute, float(np.abs(actual - expected).max()))
        relative = max(relative, row_error(actual, expected))
        rows = text.choices(expected)
        top_two = np.partition(rows, -2)[:, -2:]
        near = top_two[:, 1] - top_two[:, 0] < ROUNDING
        different = rows.argmax(axis=1) != np.array(text.tokens[text.prompt_length :])
        found["tokens"] += len(rows)
        found["near-ties"] += int(near.sum())
        found["tokens that differ"] += int(different.sum())
        found["of them no near-tie"] += int((different & ~near).sum())
    return found | {"largest difference of a logit": absolute, "of a row, relative": relative}


def test_no_product_is_rounded_to_tf32(device: str) -> None:
    left, right = torch.rand(64, 512), torch.rand(512, 64)
    product = (left.to(device) @ right.to(device)).cpu().double()
    exact = left.double() @ right.double()
    assert ((product - exact).abs() / exact).max() < 5e-6  # TF32 rounds factors to 11 bits


def test_the_cpu_has_the_same_logits_and_greedy_tokens(
    engine: TorchEngine, texts: list[Text], embedded: Path, note: Note
) -> None:
    on_cpu = load_engine(embedded, 1, MAX_LENGTH)
    found = judge(texts, lambda tokens: engine_logits(on_cpu, tokens), engine)
    note("device against cpu, float32", found)
    assert found["tokens"] == TEXTS * TOKENS
    assert found["of a row, relative"] < 1e-3
    assert found["of them no near-tie"] == 0


def test_transformers_has_the_same_logits_and_greedy_tokens(
    engine: TorchEngine, texts: list[Text], reference: Any, note: Note
) -> None:
    found = judge(texts, lambda tokens: reference_logits(reference, tokens), engine)
    note("device against transformers on it, float32", found)
    assert found["of a row, relative"] < 1e-3
    assert found["of them no near-tie"] == 0


def test_bfloat16_is_as_close_to_float32_as_transformers_is(
    half_engine: TorchEngine, texts: list[Text], reference: Any, embedded: Path, device: str, note: Note
) -> None:
    rounded = load_reference(embedded, torch.bfloat16).to(device)
    ours = theirs = 0.0
    for text in texts:
        exact = reference_logits(reference, text.tokens)
        ours = max(ours, row_error(engine_logits(half_engine, text.tokens), exact))
        theirs = max(theirs, row_error(reference_logits(rounded, text.tokens), exact))
    note("bfloat16, largest relative error of a row", {"ours": ours, "transformers": theirs})
    assert 0 < ours < 2 * theirs
