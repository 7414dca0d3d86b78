"""The embedded model's tokenizer is SmolLM2's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.checkpoints.tokenizer import end_ids, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(embedded: Path) -> Any:
    return load_tokenizer(embedded)


def test_the_chat_template_is_the_official_one(tokenizer: Any) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_turn_of_the_client_replaces_the_default(tokenizer: Any) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_digits_are_split_before_anything_else(tokenizer: Any) -> None:
    tokens = tokenizer.tokenize("List:\n\n1. 345")
    assert tokens == ["List", ":", "ĊĊ", "1", ".", "Ġ", "3", "4", "5"]


@pytest.mark.parametrize("text", ["plain", "  two  spaces\n\n\ttab", "é漢😀\u200d", "<|im_end|> 12,345"])
def test_text_survives_a_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_turn_ends_with_im_end(embedded: Path, tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(list(end_ids(embedded))) == ["<|im_end|>"]


def test_end_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    assert end_ids(tmp_path) == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert end_ids(tmp_path) == (5,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert end_ids(tmp_path) == (7, 8)


def test_a_class_that_only_transformers_5_has_is_read_by_either_release(embedded: Path, tokenizer: Any) -> None:
    """The embedded folder was written by 5; 4.57 ends with "Tokenizer class TokenizersBackend does not exist"."""
    assert json.loads((embedded / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    assert tokenizer.is_fast
    assert tokenizer.eos_token == "<|im_end|>"
