"""Requests and responses of the Python backend, to and from named numpy arrays."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.coordinator.request import invalid
from python_backend.protocol import Tensors

MOST_OF_A_NAME = 80  # characters of a client's own name that an error repeats


def tensors_of(request: Any, batched: bool) -> Tensors:
    """Inputs by name, copied, so that they outlive the request. batched: the leading axis of 1 is taken off."""
    arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    return {name: (array[0] if batched else array).copy() for name, array in arrays.items()}


def parameters_of(request: Any) -> dict[str, Any]:
    """Request parameters: strings, integers, floats and booleans by name.

    Raises RequestError (INVALID_ARG) where one is no text, which Triton takes over HTTP."""
    try:
        return dict(json.loads(request.parameters() or "{}"))
    except UnicodeDecodeError as error:
        raise invalid(f"request parameter {_not_text(error.object)} is not valid UTF-8") from None


def _not_text(parameters: bytes) -> str:
    """The first parameter of this JSON whose name or value is no text."""
    told: dict[str, Any] = json.loads(parameters.decode(errors="replace"))
    name = next(n for n, value in told.items() if "\N{REPLACEMENT CHARACTER}" in f"{n}{value}")
    return f"'{name[:MOST_OF_A_NAME]}'"


def request_id_of(request: Any) -> str:
    """Raises RequestError (INVALID_ARG) where it is no text."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError as error:
        raise invalid(f"request id is not valid UTF-8: byte {error.start}") from None


def pb_tensors(outputs: Tensors) -> list[Any]:
    """As they are. A batched model's outputs get no batch axis either: clients of TensorRT-LLM's backend, whose
    postprocessing leaves it out too, break on one."""
    return [pb_utils.Tensor(name, array) for name, array in outputs.items()]


def response_of(outputs: Tensors) -> Any:
    return pb_utils.InferenceResponse(pb_tensors(outputs))


def error_response(message: str, code: str) -> Any:
    """code: the name of a TritonError code, such as INVALID_ARG."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))
