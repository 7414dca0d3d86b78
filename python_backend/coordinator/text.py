"""The tokenizer as the coordinator uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from python_backend.coordinator.request import invalid


class TextCodec:
    """Text to tokens and back. tokenizer: a `transformers` fast tokenizer."""

    def __init__(self, tokenizer: Any, end_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self.end_ids = end_ids

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are left out; no clean-up of spaces, so that decoding is a concatenation."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, turns: list[dict[str, str]], thinking: bool) -> list[int]:
        """Tokens of a conversation up to where the assistant speaks."""
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        except Exception as error:  # templates raise whatever their authors chose
            raise invalid(f"messages do not fit the model's chat template: {error}") from None
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_banned(self, word: str) -> list[tuple[int, ...]]:
        """A banned word as it is tokenised at the start of text and after a space."""
        variants = {tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in (word, " " + word)}
        return sorted(v for v in variants if v)
