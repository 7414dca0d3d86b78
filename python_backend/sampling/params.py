"""How one request is sampled, and the columns of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from python_backend.protocol import Array, SamplingColumns
from python_backend.sampling.contract import MOST
from python_backend.sampling.corners import GREEDY_BELOW


@dataclass(frozen=True)
class SamplingParams:
    """Validated where requests are parsed; see `protocol.SamplingColumns` for units and what switches a value off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    return_log_probs: bool = False

    @property
    def heat(self) -> float:
        """The temperature as it is used."""
        return self.temperature if self.temperature >= GREEDY_BELOW else 0.0

    @cached_property
    def plain(self) -> bool:
        """Argmax and nothing else: every column stays at its default."""
        plain = (self.heat, self.min_tokens, self.bad_words, self.return_log_probs) == (0, 0, (), False)
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return plain and penalties == (1, 0, 0)


def columns(params: Sequence[SamplingParams], prompt_length: Sequence[int]) -> dict[str, Array]:
    """The sampling columns of a step, by field name. What a sequence does not use is left at its default, so that
    the column need not travel."""
    if all(p.plain for p in params):
        return SamplingColumns.defaults(len(params))
    words = [word for p in params for word in p.bad_words]
    ends = [p.end_ids if p.min_tokens else () for p in params]
    starts = [
        length if p.min_tokens or p.presence_penalty or p.frequency_penalty else 0
        for p, length in zip(params, prompt_length, strict=True)
    ]
    return {
        "temperature": np.array([p.heat for p in params], dtype=np.float32),
        "top_k": np.array([min(p.top_k, MOST) if p.heat else 0 for p in params], dtype=np.int32),
        "top_p": np.array([p.top_p if p.heat else 0 for p in params], dtype=np.float32),
        "min_p": np.array([p.min_p if p.heat else 0 for p in params], dtype=np.float32),
        "repetition_penalty": np.array([p.repetition_penalty for p in params], dtype=np.float32),
        "presence_penalty": np.array([p.presence_penalty for p in params], dtype=np.float32),
        "frequency_penalty": np.array([p.frequency_penalty for p in params], dtype=np.float32),
        "seed": np.array([p.seed if p.heat else 0 for p in params], dtype=np.uint64),
        "prompt_length": np.array(starts, dtype=np.int32),
        "min_tokens": np.array([min(p.min_tokens, MOST) for p in params], dtype=np.int32),
        "return_log_probs": np.array([p.return_log_probs for p in params], dtype=np.bool_),
        "end_id_count": np.array([len(e) for e in ends], dtype=np.int32),
        "end_ids": np.array([t for e in ends for t in e], dtype=np.int32),
        "bad_word_count": np.array([len(p.bad_words) for p in params], dtype=np.int32),
        "bad_word_length": np.array([len(w) for w in words], dtype=np.int32),
        "bad_word_ids": np.array([t for w in words for t in w], dtype=np.int32),
    }


def draft_columns(params: Sequence[SamplingParams]) -> dict[str, Array]:
    """The sampling columns of a draft call, by field name."""
    every = columns(params, [0] * len(params))
    return {name: every[name] for name in ("temperature", "top_k", "top_p", "seed")}


def greedy_columns(batch: int) -> dict[str, Array]:
    """Columns of `batch` sequences decoded by argmax."""
    return columns([SamplingParams()] * batch, [0] * batch)
