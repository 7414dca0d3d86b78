"""From committed tokens to answers: finish reasons, stop strings, and the tensors of a response."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence as Items
from typing import Literal, NamedTuple

import numpy as np

from python_backend.coordinator.reply import Reply
from python_backend.coordinator.sequence import Sequence
from python_backend.protocol import Array, Tensors

FinishReason = Literal["", "stop", "length"]

INDICES: Tensors = {name: np.zeros(1, dtype=np.int32) for name in ("batch_index", "sequence_index")}


def append(sequence: Sequence, tokens: Items[int]) -> tuple[int, FinishReason]:
    """Append committed tokens one by one until the sequence ends. Returns how many were used, and why it ended.

    An end id ends the sequence and is not part of the output; a stop string is cut off together with what follows.
    """
    for used, token in enumerate(tokens, start=1):
        if token in sequence.end_ids:
            return used, "stop"
        sequence.tokens.append(token)
        sequence.first_token = sequence.first_token or time.monotonic()
        if sequence.text.push(token):
            return used, "stop"
        if sequence.remaining == 0:
            return used, "length"
    return len(tokens), ""


class Response(NamedTuple):
    """Something to send to a client."""

    reply: Reply
    outputs: Tensors
    final: bool


def respond(sequence: Sequence, reason: FinishReason) -> Response | None:
    """What is new: every step while streaming, once at the end otherwise. The last response carries the summary and
    the final flag, so that a stream ends by itself."""
    if reason:
        return Response(sequence.reply, _final(sequence, reason), final=True)
    if not sequence.stream or sequence.sent == sequence.output_length:
        return None
    text = sequence.text.take()
    outputs: Tensors = {
        "text_output": strings(_first_text(sequence) + text),
        "output_ids": _new_ids(sequence),
        "finish_reason": strings(""),
        **INDICES,
    }
    sequence.sent = sequence.output_length
    return Response(sequence.reply, outputs, final=False)


def strings(*values: str) -> Array:
    """STRING [n]"""
    return np.array([value.encode() for value in values], dtype=np.object_)


def _final(sequence: Sequence, reason: FinishReason) -> Tensors:
    text = _first_text(sequence) + sequence.text.finish()
    stats = sequence.stats
    log_probs = np.array(sequence.log_probs[: sequence.output_length], dtype=np.float32)
    return {
        "text_output": strings(text),
        "output_ids": _new_ids(sequence),
        "finish_reason": strings(reason),
        **INDICES,
        "num_input_tokens": np.array([sequence.prompt_length], dtype=np.int32),
        "num_output_tokens": np.array([sequence.output_length], dtype=np.int32),
        "speculation": strings(
            json.dumps(stats.summary() | {"workload": sequence.workload, "drafter": sequence.drafter})
        ),
        "acceptance_rate": np.array([stats.accepted / max(1, stats.kept)], dtype=np.float32),
        "total_accepted_draft_tokens": np.array([stats.accepted], dtype=np.int32),
        "total_draft_tokens": np.array([stats.kept], dtype=np.int32),
        **(
            {"cum_log_probs": log_probs.sum(keepdims=True), "output_log_probs": log_probs}
            if sequence.params.return_log_probs
            else {}
        ),
        **(_times(sequence) if sequence.perf_metrics else {}),
    }


def _times(sequence: Sequence) -> Tensors:
    """When what happened, in nanoseconds of the steady clock; a first token that never came is the end."""
    now = time.monotonic()
    times = {
        "arrival": sequence.arrived,
        "first_scheduled": sequence.scheduled,
        "first_token": sequence.first_token or now,
        "last_token": now,
    }
    return {f"{name}_time_ns": np.array([int(at * 1e9)], dtype=np.int64) for name, at in times.items()}


def _first_text(sequence: Sequence) -> str:
    return sequence.echo if sequence.sent == 0 else ""


def _new_ids(sequence: Sequence) -> Array:
    return np.array(sequence.tokens[sequence.prompt_length + sequence.sent :], dtype=np.int32)
