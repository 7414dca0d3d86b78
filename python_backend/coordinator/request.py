"""A client's request: parsed from tensors and request parameters, checked, with the errors a user should see."""

from __future__ import annotations

import logging
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from python_backend.coordinator.bounds import (
    Count,
    Finite,
    Microseconds,
    Penalty,
    Probability,
    Repetition,
    Temperature,
    Text,
    TokenId,
    TopK,
    Words,
    shown,
)
from python_backend.coordinator.foreign import FOREIGN, complaint
from python_backend.protocol import Tensors
from python_backend.settings import Workload

log = logging.getLogger(__name__)

ALIASES = {"random_seed": "seed", "max_completion_tokens": "max_tokens", "min_length": "min_tokens"}
WINNING_ALIASES = {"max_completion_tokens"}  # clients fill max_tokens themselves beside it
LISTS = {"stop_words", "bad_words", "input_ids"}
MOST_COMPLAINTS = 5  # of one error

ErrorCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]


class RequestError(Exception):
    """A request that fails, with the code of the gRPC and Triton error it becomes."""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    return RequestError(message, "INVALID_ARG")


class Fields(BaseModel):
    """Every input of the `angelspec` model that has an effect, by its wire name. Off-values are those of the
    TensorRT-LLM backend."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_input: Text | None = None
    messages: Text | None = None
    input_ids: tuple[int, ...] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Count = 0
    stream: bool = False
    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: Probability = 0.0
    min_p: Probability = 0.0
    repetition_penalty: Repetition = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    length_penalty: Finite = 1.0
    beam_width: Annotated[int, Field(ge=1, le=1)] = 1
    num_return_sequences: Annotated[int, Field(ge=0, le=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stop_words: Words = ()
    bad_words: Words = ()
    end_id: TokenId | None = None
    pad_id: TokenId | None = None
    return_log_probs: bool = False
    return_perf_metrics: bool = False
    exclude_input_in_output: bool = True
    return_num_input_tokens: bool = True
    return_num_output_tokens: bool = True
    num_draft_tokens: Count | None = None
    workload: Workload | Literal["auto"] = "auto"
    thinking: bool = False
    stop: bool = False
    timeout: Microseconds = 0  # a request parameter only; 0 = the settings' deadline


def parse(tensors: Tensors, parameters: dict[str, Any]) -> Fields:
    """Read the wire form. A tensor wins over a request parameter of the same name; unknown parameters are ignored
    with a warning. Raises RequestError (INVALID_ARG) naming the input, the value and the limit."""
    if refused := [text for name, value in (parameters | tensors).items() if (text := _foreign(name, value))]:
        raise invalid("; ".join(refused))
    parameters = {name: value for name, value in parameters.items() if name not in FOREIGN}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in FOREIGN}
    given = {name: value for name, value in parameters.items() if ALIASES.get(name, name) in Fields.model_fields}
    if ignored := sorted(parameters.keys() - given.keys() - {"id", "triton_enable_empty_final_response"}):
        log.warning("request parameters ignored: %s", shown(", ".join(ignored)))
    given |= {name: _value(name, tensor) for name, tensor in tensors.items()}
    if isinstance(words := given.get("stop"), str | list):  # elsewhere `stop` means what `stop_words` means here
        given["stop"] = False
        given["stop_words"] = [*_members(given.get("stop_words", ())), *_members(words)]
    for alias, name in ALIASES.items():
        if alias in given:
            value = given.pop(alias)
            given[name] = value if alias in WINNING_ALIASES else given.get(name, value)
    for name in LISTS & given.keys():
        given[name] = _members(given[name])
    try:
        return Fields.model_validate(given)
    except ValidationError as error:
        raise invalid("; ".join(_explain(e) for e in error.errors()[:MOST_COMPLAINTS])) from None


def fresh_seed() -> int:
    return secrets.randbits(64)


def _members(value: Any) -> Any:
    """A list, of one member where a scalar was sent for it."""
    return (value,) if isinstance(value, str | int) else value


def _foreign(name: str, value: Any) -> str:
    return complaint(name, value) if name in FOREIGN else ""


def _value(name: str, tensor: Any) -> Any:
    values = [_text(name, v) if isinstance(v, bytes) else v for v in tensor.reshape(-1).tolist()]
    if name in LISTS:
        return tuple(values)
    if len(values) != 1:
        raise invalid(f"{name} has {len(values)} elements, expected 1")
    return values[0]


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"{name} is not valid UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("function", "literal", "constr")))
    if error["type"] == "value_error":
        return f"{name} {error['ctx']['error']}"
    return f"{name} is {shown(error['input'])}: it {error['msg'].removeprefix('Input ')}"
