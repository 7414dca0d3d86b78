"""What travels between the coordinator and its engines: one message for each call and for each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from python_backend.protocol.message import (
    Array,
    Message,
    ProtocolError,
    check_at_least,
    column,
    engine_time,
    filled,
    no_features,
    no_items,
)

NO_TOKEN = -1


class Part(NamedTuple):
    """The rows of one sequence in a verify pass: a prompt chunk, or its anchor followed by the kept drafts."""

    slot: int
    past: int  # committed rows in the slot
    tokens: Sequence[int]
    drafts: int = 0  # how many of the tokens, at the end, are drafts
    sample: bool = True  # false: a prompt chunk that is not the last


class Context(NamedTuple):
    """What one sequence hands a drafter: context rows that it has not seen."""

    slot: int
    past: int  # context rows that it has
    tokens: Sequence[int]  # those that follow the rows
    features: Array | None = None  # [c, F] of the rows; None where the drafter reads none, or finds them itself
    anchor: int | None = None  # None: the last of the tokens; NO_TOKEN: append only


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
    def of(cls, parts: Sequence[Part], **columns: Array) -> Self:
        """The pass over these sequences, in their order. columns: those of SamplingColumns and `unread` that are not to
        have their defaults, with which every token is the likeliest."""
        packed = {
            "slot": np.array([p.slot for p in parts], dtype=np.int32),
            "past_length": np.array([p.past for p in parts], dtype=np.int32),
            "row_count": np.array([len(p.tokens) for p in parts], dtype=np.int32),
            "sample": np.array([p.sample for p in parts], dtype=np.bool_),
            "draft_count": np.array([p.drafts for p in parts], dtype=np.int32),
            "token_ids": np.array([t for p in parts for t in p.tokens], dtype=np.int32),
        }
        return cls(**cls.defaults(len(parts)) | packed | columns)

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
    def of(cls, contexts: Sequence[Context], depth: int, **columns: Array) -> Self:
        """A call for these sequences, in their order, for so many drafts of each. columns: temperature, top_k, top_p
        and seed where they are not to have their defaults, with which every draft is the likeliest."""
        tokens = np.array([t for c in contexts for t in c.tokens], dtype=np.int32)
        pieces = [c.features for c in contexts if c.features is not None]
        anchors = [c.tokens[-1] if c.anchor is None else c.anchor for c in contexts]
        packed = {
            "slot": np.array([c.slot for c in contexts], dtype=np.int32),
            "past_length": np.array([c.past for c in contexts], dtype=np.int32),
            "context_count": np.array([len(c.tokens) for c in contexts], dtype=np.int32),
            "features": np.concatenate(pieces) if pieces else np.zeros((len(tokens), 0), dtype=np.float32),
            "token_ids": tokens,
            "anchor": np.array(anchors, dtype=np.int32),
            "depth": np.array([depth], dtype=np.int32),
        }
        return cls(**cls.defaults(len(contexts)) | packed | columns)

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
