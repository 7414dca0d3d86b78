"""Servers on a tiny checkpoint, and what they should answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clients import transport
from python_backend.protocol import Part
from tests.server.conftest import ServerUnderTest
from tests.support.checkpoints import VOCABULARY, load_engine, make_step, save_tiny

TOKENS = 40


def save_with_words(kind: str, folder: Path) -> Path:
    """A random model with a tokenizer of words: "t17" is token 17."""
    save_tiny(kind, folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def ask(server: ServerUnderTest, request: dict[str, Any]) -> Any:
    body = {"max_tokens": TOKENS, "min_tokens": TOKENS, **request}
    body["input_ids"] = body.pop("prompt")
    return transport.generate(body, server.http_url)


def plain_decoding(checkpoint: Path, request: dict[str, Any]) -> list[int]:
    """The PyTorch engine's tokens, without drafts."""
    engine, tokens, fed = load_engine(checkpoint, slots=1), list(request["prompt"]), 0
    columns = {
        "temperature": np.array([request.get("temperature", 0)], dtype=np.float32),
        "top_p": np.array([request.get("top_p", 0)], dtype=np.float32),
        "top_k": np.array([request.get("top_k", 0)], dtype=np.int32),
        "repetition_penalty": np.array([request.get("repetition_penalty", 1)], dtype=np.float32),
        "seed": np.array([request.get("seed", 0)], dtype=np.uint64),
        "prompt_length": np.array([len(tokens)], dtype=np.int32),
        "min_tokens": np.array([TOKENS], dtype=np.int32),
        "end_id_count": np.array([1], dtype=np.int32),
        "end_ids": np.array([2], dtype=np.int32),
    }
    while len(tokens) < len(request["prompt"]) + TOKENS:
        result = engine.step(make_step(Part(0, fed, tokens[fed:]), **columns))
        fed = len(tokens)
        tokens.append(int(result.next_token[0]))
    return tokens[len(request["prompt"]) :]
