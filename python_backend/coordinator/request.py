"""A client's request: parsed from tensors and request parameters, checked, with the errors a user should see."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from python_backend.protocol import Tensors
from python_backend.settings import Workload

log = logging.getLogger(__name__)

ALIASES = {"random_seed": "seed", "max_completion_tokens": "max_tokens"}
WINNING_ALIASES = {"max_completion_tokens"}  # clients fill max_tokens themselves beside it
LISTS = {"stop_words", "bad_words", "input_ids"}

ErrorCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class RequestError(Exception):
    """A request that fails, with the code of the gRPC and Triton error it becomes."""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    return RequestError(message, "INVALID_ARG")


class Fields(BaseModel):
    """Every input of the `angelspec` model, by its wire name. Off-values are those of the TensorRT-LLM backend."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_input: str | None = None
    messages: str | None = None
    input_ids: tuple[int, ...] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Probability = 0.0
    min_p: Probability = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    length_penalty: Finite = 1.0
    beam_width: Annotated[int, Field(ge=1, le=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    end_id: int | None = None
    pad_id: int | None = None
    return_log_probs: bool = False
    exclude_input_in_output: bool = True
    return_num_input_tokens: bool = True
    return_num_output_tokens: bool = True
    num_draft_tokens: Annotated[int, Field(ge=0)] | None = None
    workload: Workload | Literal["auto"] = "auto"
    thinking: bool = False
    stop: bool = False


def parse(tensors: Tensors, parameters: dict[str, Any]) -> Fields:
    """Read the wire form. A tensor wins over a request parameter of the same name; unknown parameters are ignored
    with a warning. Raises RequestError (INVALID_ARG) naming the input, the value and the limit."""
    given = {name: value for name, value in parameters.items() if ALIASES.get(name, name) in Fields.model_fields}
    if ignored := sorted(parameters.keys() - given.keys() - {"id", "triton_enable_empty_final_response"}):
        log.warning("request parameters ignored: %s", ", ".join(ignored))
    given |= {name: _value(name, tensor) for name, tensor in tensors.items()}
    for alias, name in ALIASES.items():
        if alias in given:
            value = given.pop(alias)
            given[name] = value if alias in WINNING_ALIASES else given.get(name, value)
    for name in LISTS & given.keys():
        if isinstance(given[name], str | int):
            given[name] = (given[name],)
    try:
        return Fields.model_validate(given)
    except ValidationError as error:
        raise invalid("; ".join(_explain(e) for e in error.errors())) from None


def parse_messages(text: str) -> list[dict[str, str]]:
    """Chat turns from JSON: a non-empty list of {"role": …, "content": …}, both strings."""
    try:
        turns = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(f"messages is not valid JSON: {error}") from None
    if not isinstance(turns, list) or not turns:
        raise invalid("messages must be a non-empty JSON list of chat turns")
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise invalid(f"messages[{i}] must be an object with the strings 'role' and 'content'")
        if turn["role"] not in ("system", "user", "assistant"):
            raise invalid(f"messages[{i}] has the role '{turn['role']}': expected system, user or assistant")
    return turns


def fresh_seed() -> int:
    return secrets.randbits(64)


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
    limit = error["msg"].removeprefix("Input ")
    return f"{name} is {str(error['input'])[:80]!r}: it {limit}"
