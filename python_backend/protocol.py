"""The step protocol between the coordinator and its engines: the only place that knows tensor names.

One message is one synchronous call that carries the whole ragged batch: B sequences, R packed rows.
`encode` turns a message into named numpy tensors, `decode` reads it back and checks every shape; a broken
contract raises `ProtocolError`, which names the tensor, the value and the limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

STEP, DESCRIBE, OPEN, RELEASE = "step", "describe", "open", "release"
OPERATION = "operation"  # request parameter that selects one of them
HOSTED = "drafter"  # request parameter: the drafter in the target's process that a call is for
DESCRIPTION = "description"  # STRING [1]: JSON of a Description
NO_TOKEN = -1


class ProtocolError(ValueError):
    """A message breaks the contract; becomes INVALID_ARG on the wire."""


Default = Callable[[int], Array]  # length of the first axis -> the column that a sender may leave out


class Column(NamedTuple):
    """How a message declares one of its tensors."""

    name: str
    dtype: np.dtype[Any]
    length: str | None  # the count its first axis must have: B, R, C, …
    default: Default | None


def column(dtype: npt.DTypeLike, length: str | None = None, default: Default | None = None, **field: Any) -> Any:
    """A packed tensor field of a message; see Column."""

    @lru_cache(maxsize=64)
    def shared(count: int) -> Array:
        """One read-only array a length, so that a default is recognised without looking into it."""
        assert default is not None
        values = default(count).astype(dtype)
        values.flags.writeable = False
        return values

    metadata = {"dtype": np.dtype(dtype), "length": length, "default": shared if default else None}
    return dataclasses.field(metadata=metadata, **field)


def filled(value: float) -> Default:
    """The same value for every sequence."""
    return lambda length: np.full(length, value)


def no_items(_: int) -> Array:
    """A ragged column of which nobody has any."""
    return np.zeros(0)


def no_features(length: int) -> Array:
    """Rows without features: [C, 0]."""
    return np.zeros((length, 0))


def engine_time() -> Any:
    """[1] ms that the call spent inside the engine; 0 where nobody measured."""
    return column(np.float32, default_factory=lambda: np.zeros(1, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages: fields declared with `column` are the tensors, their names are the wire names.

    A column that holds its default throughout is left out of the message: every tensor costs a call about 50 µs.
    """

    batch_column: ClassVar[str]  # its first axis is B; never left out

    @classmethod
    @cache
    def columns(cls) -> tuple[Column, ...]:
        return tuple(Column(f.name, **f.metadata) for f in dataclasses.fields(cls))

    @classmethod
    def defaults(cls, batch: int) -> Tensors:
        """The columns that have a default, as a batch has them that uses none of what they say."""
        return {c.name: c.default(batch) for c in cls.columns() if c.default}

    def encode(self) -> Tensors:
        """Named contiguous tensors of the declared dtypes."""
        tensors: Tensors = {}
        for name, dtype, _, default in self.columns():
            value = getattr(self, name)
            if default is not None:
                usual = default(len(value))
                if value is usual or np.array_equal(value, usual):
                    continue
            tensors[name] = np.ascontiguousarray(value, dtype=dtype)
        return tensors

    @classmethod
    def decode(cls, tensors: Tensors) -> Self:
        """Read a message back. Raises ProtocolError for a missing tensor, a wrong dtype or a wrong length."""
        columns: Tensors = {}
        left_out: list[Column] = []
        for c in cls.columns():
            if c.name in tensors:
                columns[c.name] = tensors[c.name]
                if columns[c.name].dtype != c.dtype:
                    raise ProtocolError(f"tensor '{c.name}' has dtype {columns[c.name].dtype}, expected {c.dtype}")
            elif c.default is None:
                raise ProtocolError(f"tensor '{c.name}' is missing from {cls.__name__}")
            else:
                left_out.append(c)
        # The columns of length B come first: they count the rows of the others.
        batch = len(columns[cls.batch_column])
        for c in sorted(left_out, key=lambda c: c.length not in ("B", None)):
            length = batch if c.length in ("B", None) else cls.lengths(columns)[c.length]
            columns[c.name] = c.default(length)  # type: ignore[misc]
        message = cls(**columns)
        message.check()
        return message

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        """The counts that the columns' first axes are checked against."""
        return {"B": len(columns[cls.batch_column])}

    def check(self) -> None:
        """Raise ProtocolError where a column's first axis differs from its declared count."""
        lengths = self.lengths(vars(self))
        for name, _, expected, _ in self.columns():
            actual = len(getattr(self, name))
            if expected is not None and actual != lengths[expected]:
                raise ProtocolError(f"tensor '{name}' has {actual} entries, expected {expected} = {lengths[expected]}")


@dataclass(frozen=True, eq=False)
class SamplingColumns(Message):
    """How each of B sequences is sampled; the wire form of `sampling.params.SamplingParams`."""

    temperature: Array = column(np.float32, "B", filled(0))  # 0 = argmax; values at the edges: see sampling.corners
    top_k: Array = column(np.int32, "B", filled(0))  # 0 = off
    top_p: Array = column(np.float32, "B", filled(0))  # 0 or 1 = off
    min_p: Array = column(np.float32, "B", filled(0))  # 0 = off
    repetition_penalty: Array = column(np.float32, "B", filled(1))  # 1 = off; over prompt and output
    presence_penalty: Array = column(np.float32, "B", filled(0))  # 0 = off; over output
    frequency_penalty: Array = column(np.float32, "B", filled(0))  # 0 = off; over output
    seed: Array = column(np.uint64, "B", filled(0))
    prompt_length: Array = column(np.int32, "B", filled(0))  # where output begins; 0 where nothing asks
    min_tokens: Array = column(np.int32, "B", filled(0))  # end ids are forbidden before so many output tokens
    return_log_probs: Array = column(np.bool_, "B", filled(False))
    end_id_count: Array = column(np.int32, "B", filled(0))
    end_ids: Array = column(np.int32, None, no_items)  # [sum end_id_count]
    bad_word_count: Array = column(np.int32, "B", filled(0))  # banned token sequences of each sequence
    bad_word_length: Array = column(np.int32, None, no_items)  # [sum bad_word_count]
    bad_word_ids: Array = column(np.int32, None, no_items)  # [sum bad_word_length]


@dataclass(frozen=True, eq=False)
class TargetStep(SamplingColumns):
    """One verify pass. Rows of a sequence: a prompt chunk, or its anchor followed by the kept drafts."""

    slot: Array = column(np.int32, "B")  # KV slot
    past_length: Array = column(np.int32, "B")  # committed rows in the slot; what lies beyond is rolled back
    row_count: Array = column(np.int32, "B")  # at least 1
    sample: Array = column(np.bool_, "B", filled(True))  # false: a prompt chunk that is not the last
    draft_count: Array = column(np.int32, "B", filled(0))  # trailing rows that are drafts; 0 for a prompt chunk
    token_ids: Array = column(np.int32, "R")
    unread: Array = column(np.int32, None, no_items, default_factory=partial(np.zeros, 0, np.int32))
    # slots whose features nobody reads: they may be left out

    batch_column = "slot"

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        return super().lengths(columns) | {"R": int(columns["row_count"].sum())}

    def check(self) -> None:
        super().check()
        check_at_least("row_count", self.row_count, 1)
        check_at_least("past_length", self.past_length, 0)
        check_at_least("draft_count", self.draft_count, 0)
        if (excess := self.draft_count >= self.row_count).any():
            i = int(np.argmax(excess))
            raise ProtocolError(
                f"tensor 'draft_count' is {self.draft_count[i]} for sequence {i}, limit {self.row_count[i] - 1}"
            )


@dataclass(frozen=True, eq=False)
class TargetResult(Message):
    """What a verify pass committed."""

    accepted: Array = column(np.int32, "B")  # drafts accepted, 0..draft_count
    next_token: Array = column(np.int32, "B")  # the target's own token after them; -1 where sample was false
    feature_count: Array = column(
        np.int32, "B", filled(0)
    )  # rows of a prompt chunk, or 1 + accepted; 0 without capture
    features: Array = column(np.float32, "C", no_features)  # [C, F] captured hidden states of the committed rows
    log_prob_count: Array = column(np.int32, "B", filled(0))  # 1 + accepted where asked for, else 0
    log_probs: Array = column(np.float32, "L", filled(0))  # [L] log p of each emitted token, before processors
    engine_ms: Array = engine_time()

    batch_column = "accepted"

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        rows, emitted = int(columns["feature_count"].sum()), int(columns["log_prob_count"].sum())
        return super().lengths(columns) | {"C": rows, "L": emitted}


@dataclass(frozen=True, eq=False)
class PrefixQuery(Message):
    """Prompts that begin in these slots: what does the target hold of them already?"""

    slot: Array = column(np.int32, "B")
    row_count: Array = column(np.int32, "B")  # the whole prompt, at least 1
    token_ids: Array = column(np.int32, "R")
    unread: Array = column(np.int32, None, no_items, default_factory=partial(np.zeros, 0, np.int32))
    # slots whose features nobody will read: rows may be held without them

    batch_column = "slot"

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        return super().lengths(columns) | {"R": int(columns["row_count"].sum())}

    def check(self) -> None:
        super().check()
        check_at_least("row_count", self.row_count, 1)


@dataclass(frozen=True, eq=False)
class PrefixHit(Message):
    """Where each prompt's first step starts: its slot holds `held` committed rows."""

    held: Array = column(np.int32, "B")  # below the prompt's length
    feature_count: Array = column(np.int32, "B", filled(0))  # held; 0 without capture, and may be 0 where unread
    features: Array = column(np.float32, "C", no_features)  # [C, F] captured hidden states of the rows held

    batch_column = "held"

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        return super().lengths(columns) | {"C": int(columns["feature_count"].sum())}


@dataclass(frozen=True, eq=False)
class DrafterStep(Message):
    """Append committed context, then draft for every sequence that has an anchor.

    Context row j holds the target's features at position past_length + j and, as `token_ids`, the token that
    follows it; the last one is the anchor. A prompt chunk that is not the last has no anchor: nothing is drafted.
    """

    slot: Array = column(np.int32, "B")
    past_length: Array = column(np.int32, "B")  # context rows already appended
    context_count: Array = column(np.int32, "B")
    features: Array = column(np.float32, "C", no_features)  # [C, F]; F may be 0
    token_ids: Array = column(np.int32, "C")
    anchor: Array = column(np.int32, "B")  # -1: append only
    depth: Array = column(np.int32)  # [1] drafts per sequence, D
    temperature: Array = column(np.float32, "B", filled(0))
    top_k: Array = column(np.int32, "B", filled(0))
    top_p: Array = column(np.float32, "B", filled(0))
    seed: Array = column(np.uint64, "B", filled(0))

    batch_column = "slot"

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        return super().lengths(columns) | {"C": int(columns["context_count"].sum())}

    def check(self) -> None:
        super().check()
        check_at_least("context_count", self.context_count, 0)
        check_at_least("past_length", self.past_length, 0)
        if self.depth.shape != (1,) or self.depth[0] < 0:
            raise ProtocolError(f"tensor 'depth' is {self.depth.tolist()}, expected one number of at least 0")


@dataclass(frozen=True, eq=False)
class DrafterResult(Message):
    """Drafts of each sequence; -1 with confidence 0 from the first position without a draft."""

    draft_ids: Array = column(np.int32, "B")  # [B, D]
    confidence: Array = column(np.float32, "B")  # [B, D] P(accepted | all before it were)
    engine_ms: Array = engine_time()

    batch_column = "draft_ids"

    def check(self) -> None:
        super().check()
        if self.draft_ids.ndim != 2 or self.draft_ids.shape != self.confidence.shape:
            raise ProtocolError(
                f"tensor 'draft_ids' has shape {self.draft_ids.shape}, 'confidence' {self.confidence.shape}: "
                "expected the same [B, D]"
            )


@dataclass(frozen=True, eq=False)
class Release(Message):
    """Slots whose sequences ended; their contents may be overwritten."""

    slot: Array = column(np.int32, "B")

    batch_column = "slot"


@dataclass(frozen=True)
class Description:
    """Who answers the calls; compared at start-up by `coordinator.handshake`."""

    name: str
    role: str  # "target" or "drafter"
    engine: str  # "torch", "openvino", "tensorrt_llm", "prompt_lookup", …
    engine_version: str
    dtype: str
    device: str
    weights_sha256: str  # empty for a drafter without weights
    vocabulary_size: int
    slots: int
    max_length: int
    feature_layers: tuple[int, ...]  # target: what it captures; drafter: what it needs
    feature_size: int  # F
    max_depth: int = 0  # drafter: the longest draft
    target_sha256: str = ""  # drafter: the target it was trained for; empty = any
    hosted: bool = False  # drafter: in the target's process, where it finds its features by slot and position
    hardware: str = ""  # the device that it runs on, where that is not the CPU
    build: str = ""  # of an engine that is built from its weights: which one
    prefix_block: int = 0  # target: rows that sequences share at a time; 0 = it shares none and is not asked to `open`


def check_at_least(name: str, values: Array, minimum: int) -> None:
    """Raise ProtocolError naming the first entry below the minimum."""
    if (low := values < minimum).any():
        i = int(np.argmax(low))
        raise ProtocolError(f"tensor '{name}' is {values[i]} for sequence {i}, minimum {minimum}")


def row_starts(counts: Array) -> npt.NDArray[np.int64]:
    """[B + 1] offsets of packed rows: sequence i owns rows starts[i]:starts[i + 1]."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
