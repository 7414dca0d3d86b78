"""The tokenizer as the coordinator uses it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from python_backend.coordinator.bounds import shown
from python_backend.coordinator.request import invalid

Turn = dict[str, str]

_STAND_IN = re.compile("\ue000[0-9a-f]{16}\ue001")


class TextCodec:
    """Text to tokens and back. Any thread may use it."""

    def __init__(self, tokenizer: Any, end_ids: tuple[int, ...], vocabulary_size: int = 0) -> None:
        """tokenizer: a `transformers` fast tokenizer. vocabulary_size: of the model; 0 = not known."""
        self._tokenizer = tokenizer
        self.end_ids, self.vocabulary_size = end_ids, vocabulary_size
        self.control_ids: dict[str, int] = {
            str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        # A tokenizer of its own: which tokens it looks for is a state, and threads share it.
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        longest_first = sorted(self.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(re.escape(text) for text in longest_first) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """Control tokens are taken for what they say: a raw prompt brings its own template."""
        return list(self._tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens are left out; no clean-up of spaces, so that decoding is a concatenation."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, turns: list[Turn], thinking: bool, allow_control: bool = False) -> list[int]:
        """Tokens of a conversation up to where the assistant speaks. Control tokens that stand in a turn's text stay
        text, unless allow_control. Raises RequestError (INVALID_ARG) with what the template has to say."""
        hidden: dict[str, str] = {}  # stand-in -> the control token that someone wrote
        if not allow_control:
            turns = [self._hide(turn, hidden) for turn in turns]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        except Exception as error:  # templates raise whatever their authors chose
            raise invalid(f"messages do not fit the model's chat template: {shown(error)}") from None
        return self._encode_around(text, hidden) if hidden else self._encode_rendered(text)

    def encode_banned(self, word: str) -> list[tuple[int, ...]]:
        """A banned word as it is tokenised at the start of text and after a space."""
        variants = {tuple(self._encode_rendered(text)) for text in (word, " " + word)}
        return sorted(v for v in variants if v)

    def _encode_rendered(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _hide(self, turn: Turn, hidden: dict[str, str]) -> Turn:
        """The turn with a stand-in for each control token in its texts, so that a template sees none of them."""

        def stand_in(found: re.Match[str]) -> str:
            name = f"\ue000{secrets.token_hex(8)}\ue001"  # nobody can have written it
            hidden[name] = found[0]
            return name

        return {name: self._control.sub(stand_in, text) for name, text in turn.items()}

    def _encode_around(self, text: str, hidden: dict[str, str]) -> list[int]:
        """Tokens of a rendered conversation: the template's control tokens, and between them nothing but text."""
        ids: list[int] = []
        end = 0
        for control in (*self._control.finditer(text), None):
            between = text[end : control.start() if control else len(text)]
            written = _STAND_IN.sub(lambda found: hidden.get(found[0], found[0]), between)
            ids += self._plain.encode(written, add_special_tokens=False).ids
            if control:
                ids.append(self.control_ids[control[0]])
                end = control.end()
        return ids
