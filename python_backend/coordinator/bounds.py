"""What a client's value may be: every limit that no setting names, each in one place.

Numbers reach the engines as int32, uint64 and float32, so they are bounded by what the arithmetic on those takes: a
temperature or a penalty within these limits keeps any logit finite, and nothing denormal is passed on, because some
engines flush that to zero.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from python_backend.sampling.corners import GREEDY_BELOW

MAX_TEMPERATURE = 1e4
MIN_REPETITION, MAX_REPETITION = 1e-3, 1e3
MAX_PENALTY = 1e3  # of presence and frequency, either sign
MAX_INT32 = 2**31 - 1
MAX_WORDS = 128  # stop words, or bad words, of one request
MAX_WORD_BYTES = 256
MAX_JSON_DEPTH = 16  # of messages; chat turns need 4
TEXT_BYTES_A_TOKEN = 64  # no prompt that fits has more, so that longer text is refused before it is tokenised
JSON_BYTES_A_TEXT_BYTE = 8  # messages may escape each character

_SHOWN = 80  # characters of a client's value that an error repeats
_SMALLEST = float(np.finfo(np.float32).tiny)


def as_float32(value: float) -> float:
    """The value as it travels; what float32 cannot hold in full precision is as small as it can, and -0.0 is 0.0."""
    if 0 < abs(value) < _SMALLEST:
        return float(np.copysign(_SMALLEST, value))
    return float(np.float32(value)) + 0.0


def _temperature(value: float) -> float:
    return as_float32(value) if value >= GREEDY_BELOW else 0.0


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half a surrogate pair at character {error.start}") from None
    return text


def _words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without empty ones, which clients send for none, and without repetitions."""
    words = tuple(dict.fromkeys(word for word in words if word))
    if len(words) > MAX_WORDS:
        raise ValueError(f"holds {len(words)} different words, the limit is {MAX_WORDS}")
    if (longest := max((len(word.encode()) for word in words), default=0)) > MAX_WORD_BYTES:
        raise ValueError(f"holds a word of {longest} bytes, the limit is {MAX_WORD_BYTES}")
    return words


Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(as_float32)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False), AfterValidator(_temperature)]
Repetition = Annotated[
    float, Field(ge=MIN_REPETITION, le=MAX_REPETITION, allow_inf_nan=False), AfterValidator(as_float32)
]
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False), AfterValidator(as_float32)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
TopK = Annotated[int, Field(ge=0, le=MAX_INT32)]
TokenId = Annotated[int, Field(ge=-1, le=MAX_INT32)]  # -1 = none; the vocabulary is looked at later
Microseconds = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, AfterValidator(_text)]
Words = Annotated[tuple[Text, ...], AfterValidator(_words)]


def shown(value: Any) -> str:
    """A client's value as an error repeats it: short, and in characters that any channel carries."""
    return repr(str(value)[:_SHOWN])
