"""What goes over the wire to the models `angelspec` and `angelspec_infer`, and what comes back, as typed values.

A request is a mapping of settings ({"text_input": "Hi", "max_tokens": 32}); `encode_grpc`, `encode_generate` and
`encode_infer` give it the form of each protocol. A response of any protocol becomes a `Chunk`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from pydantic import BaseModel, ConfigDict

MODEL, INFER_MODEL = "angelspec", "angelspec_infer"
GRPC_URL, HTTP_URL = "localhost:8001", "localhost:8000"

Settings = Mapping[str, Any]
Values = Mapping[str, Sequence[Any]]  # output name -> flat values

INPUTS: dict[
    str, str
] = {  # name -> Triton datatype; every input is optional, exactly one of the first three is a prompt
    "text_input": "BYTES",
    "messages": "BYTES",  # JSON list of {"role", "content"}
    "input_ids": "INT32",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "min_p": "FP32",
    "seed": "UINT64",
    "stop_words": "BYTES",
    "bad_words": "BYTES",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "min_tokens": "INT32",
    "end_id": "INT32",
    "return_log_probs": "BOOL",
    "exclude_input_in_output": "BOOL",
    "num_draft_tokens": "INT32",  # 0 = plain decoding
    "workload": "BYTES",
    "thinking": "BOOL",
}
LISTS = {"input_ids", "stop_words", "bad_words"}  # [n]; all others are scalars
NUMPY_TYPES: dict[str, Any] = {
    "BYTES": np.object_,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BOOL": np.bool_,
}


class ServerError(RuntimeError):
    """The server refused or broke off a request; carries its message."""


class NoServerError(ServerError):
    """Nobody listens at the address, or somebody else than was expected."""

    def __init__(self, url: str, found: str = "") -> None:
        """found: what is there instead."""
        super().__init__(
            f"{found}: give it with --url"
            if found
            else f"no server at {url}: start one with `make serve`, or give its address with --url"
        )


class Speculation(BaseModel):
    """How drafting went, over one request or the sum of several."""

    model_config = ConfigDict(frozen=True)

    mean_acceptance_length: float = 0.0  # tokens that a verify pass emits; 1 = plain decoding, 0 = no pass
    num_drafts: int = 0  # verify passes
    num_draft_tokens: int = 0  # drafted
    num_kept_tokens: int = 0  # left after pruning, so verified
    num_accepted_tokens: int = 0
    acceptance_per_position: tuple[float, ...] = ()  # share of the passes that accepted so many drafts or more
    gain: float | None = None  # time of plain decoding, by the server's cost table, over time spent; None: not known
    workload: str = ""  # as the server decided it; empty in a sum
    drafter: str = ""


def total(parts: Iterable[Speculation]) -> Speculation:
    """Sum over requests; the rates are weighted by their verify passes."""
    parts = list(parts)
    passes = sum(part.num_drafts for part in parts)
    accepted = sum(part.num_accepted_tokens for part in parts)
    timed = [(part.gain, part.num_drafts) for part in parts if part.gain is not None and part.num_drafts]
    depth = max((len(part.acceptance_per_position) for part in parts), default=0)
    accepted_at = np.zeros(depth)
    for part in parts:
        accepted_at[: len(part.acceptance_per_position)] += np.array(part.acceptance_per_position) * part.num_drafts
    return Speculation(
        mean_acceptance_length=1 + accepted / passes if passes else 0.0,
        num_drafts=passes,
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_kept_tokens=sum(part.num_kept_tokens for part in parts),
        num_accepted_tokens=accepted,
        gain=sum(gain * count for gain, count in timed) / sum(count for _, count in timed) if timed else None,
        acceptance_per_position=tuple((accepted_at / max(1, passes)).tolist()),
    )


@dataclass(frozen=True)
class Summary:
    """What the last response of a request adds."""

    finish_reason: str  # stop, length, cancelled
    num_input_tokens: int
    num_output_tokens: int
    speculation: Speculation
    cum_log_probs: float | None = None


@dataclass(frozen=True)
class Chunk:
    """One response: the text and the tokens that are new since the one before."""

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    summary: Summary | None = None  # in the last response only


@dataclass
class Answer:
    """A whole answer, gathered chunk by chunk, with the time each step took from the client's seat."""

    started_s: float = field(default_factory=time.perf_counter)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    summary: Summary | None = None  # None: cancelled or broken off
    first_token_s: float | None = None
    total_s: float = 0.0

    def add(self, chunk: Chunk) -> None:
        self.total_s = time.perf_counter() - self.started_s
        if self.first_token_s is None and chunk.token_ids:
            self.first_token_s = self.total_s
        self.text += chunk.text
        self.token_ids.extend(chunk.token_ids)
        self.log_probs.extend(chunk.log_probs)
        self.summary = chunk.summary or self.summary

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.total_s if self.total_s else 0.0


def chat_messages(*turns: tuple[str, str]) -> str:
    """(role, content) pairs as the JSON that the input `messages` takes."""
    return json.dumps([{"role": role, "content": content} for role, content in turns])


def as_list(name: str, value: Any) -> list[Any]:
    """A setting's values. Raises ValueError for a setting that the server does not have, or a number too large."""
    if name not in INPUTS:
        raise ValueError(f"'{name}' is not a setting; there are {', '.join(INPUTS)}")
    values = list(value) if name in LISTS else [value]
    if INPUTS[name] in ("INT32", "UINT64"):
        limits = np.iinfo(NUMPY_TYPES[INPUTS[name]])
        if wrong := [number for number in values if not limits.min <= number <= limits.max]:
            raise ValueError(f"{name} is {wrong[0]}: it must lie between {limits.min} and {limits.max}")
    return values


def encode_grpc(settings: Settings) -> list[triton_grpc.InferInput]:
    """Tensors for `angelspec`: scalars [1, 1], lists [1, n]."""
    tensors = []
    for name, value in settings.items():
        values = as_list(name, value)
        if INPUTS[name] == "BYTES":
            values = [text.encode() for text in values]
        array = np.array([values], dtype=NUMPY_TYPES[INPUTS[name]])
        tensor = triton_grpc.InferInput(name, list(array.shape), INPUTS[name])
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def encode_generate(settings: Settings) -> dict[str, Any]:
    """JSON body for /generate and /generate_stream."""
    values = {name: as_list(name, value) for name, value in settings.items()}
    return {name: value if name in LISTS else value[0] for name, value in values.items()}


def encode_infer(settings: Settings) -> dict[str, Any]:
    """JSON body for /infer on `angelspec_infer`, which is not batched: scalars [1], lists [n]."""
    inputs = []
    for name, value in settings.items():
        values = as_list(name, value)
        inputs.append({"name": name, "shape": [len(values)], "datatype": INPUTS[name], "data": values})
    return {"inputs": inputs}


def decode_grpc(result: triton_grpc.InferResult) -> Chunk:
    """Read a response of a gRPC stream."""
    names = [output.name for output in result.get_response().outputs]
    return decode({name: result.as_numpy(name).ravel().tolist() for name in names})


def decode_generate(body: Mapping[str, Any]) -> Chunk:
    """Read a response of /generate or an event of /generate_stream, where a tensor of one element is a scalar."""
    return decode({name: value if isinstance(value, list) else [value] for name, value in body.items()})


def decode_infer(body: Mapping[str, Any]) -> Chunk:
    """Read a response of /infer."""
    return decode({output["name"]: output["data"] for output in body["outputs"]})


def decode(values: Values) -> Chunk:
    """Read a response from its outputs' flat values. Raises ServerError where the text is missing."""
    if "text_output" not in values:
        raise ServerError(f"the response has no 'text_output', only {sorted(values)}: is this an AngelSpec model?")
    finish_reason = text_of(values.get("finish_reason", [""])[0])
    return Chunk(
        text="".join(text_of(value) for value in values["text_output"]),
        token_ids=tuple(int(token) for token in values.get("output_ids", ())),
        log_probs=tuple(float(value) for value in values.get("output_log_probs", ())),
        summary=decode_summary(finish_reason, values) if finish_reason else None,
    )


def decode_summary(finish_reason: str, values: Values) -> Summary:
    cum_log_probs = values.get("cum_log_probs")
    return Summary(
        finish_reason=finish_reason,
        num_input_tokens=int(values["num_input_tokens"][0]),
        num_output_tokens=int(values["num_output_tokens"][0]),
        speculation=Speculation.model_validate_json(text_of(values["speculation"][0])),
        cum_log_probs=float(cum_log_probs[0]) if cum_log_probs else None,
    )


def text_of(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
