"""Engines behind one synchronous BLS call per operation.

Calls come from one thread at a time: concurrent BLS calls are where Triton's Python backend is known to crash.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

import triton_python_backend_utils as pb_utils

from python_backend.engines.base import EngineError, EngineLostError
from python_backend.protocol import (
    DESCRIBE,
    DESCRIPTION,
    OPERATION,
    RELEASE,
    STEP,
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    Message,
    ProtocolError,
    Release,
    TargetResult,
    TargetStep,
    Tensors,
)
from python_backend.triton_bridge.messages import pb_tensors

log = logging.getLogger(__name__)

Result = TypeVar("Result", bound=Message)

READY_POLL_S = 0.05
REMIND_S = 10.0


def takes_calls(model: str) -> bool:
    """Whether the server lets models be called: not before all those given at its start are loaded."""
    try:
        pb_utils.is_model_ready(model)
    except pb_utils.TritonModelException:
        return False
    return True


class BlsEngine:
    """What target and drafters share. Every failure is an EngineError with the engine's own message."""

    def __init__(self, model: str, closing: threading.Event) -> None:
        """model: the Triton model to call. closing: ends the wait for it."""
        self._model, self._closing = model, closing

    def describe(self) -> Description:
        """Wait until the model is ready, then ask it."""
        self._wait_ready()
        (text,) = self._call(DESCRIBE, {}, [DESCRIPTION])[DESCRIPTION]
        values = json.loads(text)
        return Description(**values | {"feature_layers": tuple(values["feature_layers"])})

    def release(self, slot: Array) -> None:
        self._call(RELEASE, Release(slot=slot).encode(), [])

    def _step(self, message: Message, result: type[Result]) -> Result:
        outputs = self._call(STEP, message.encode(), [f.name for f in fields(result)])
        try:
            return result.decode(outputs)
        except ProtocolError as error:
            raise EngineError(f"{self._model} answered wrongly: {error}") from error

    def _call(self, operation: str, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=list(outputs),
            inputs=pb_tensors(tensors),
            parameters={OPERATION: operation},
        )
        try:
            response = request.exec()
        except pb_utils.TritonModelException as error:
            raise EngineError(f"{self._model}: {error}") from error
        if response.has_error():
            self._raise(response.error().message())
        # copied: the memory belongs to the response
        return {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}

    def _raise(self, message: str) -> None:
        if "is not healthy" not in message:  # Triton's words for a model process that died
            raise EngineError(message)
        log.error("%s: %s Loading it again.", self._model, message)
        try:
            self._reload()
        except pb_utils.TritonModelException as error:
            raise EngineLostError(
                f"the process of model '{self._model}' died and cannot be replaced, restart the server: {error}"
            ) from error
        raise EngineLostError(f"the process of model '{self._model}' died; it was replaced")

    def _reload(self) -> None:
        """Only with --model-control-mode=explicit; the server reports itself as not ready meanwhile."""
        pb_utils.unload_model(self._model)
        self._wait(lambda: not pb_utils.is_model_ready(self._model), "unloaded")
        pb_utils.load_model(self._model)

    def _wait_ready(self) -> None:
        self._wait(lambda: takes_calls(self._model) and pb_utils.is_model_ready(self._model), "ready")

    def _wait(self, condition: Callable[[], bool], state: str) -> None:
        start = reminded = time.monotonic()
        while not condition():
            if self._closing.wait(READY_POLL_S):
                raise EngineError("server is shutting down")
            if time.monotonic() > reminded + REMIND_S:
                reminded = time.monotonic()
                log.info("waiting for model '%s' to be %s, %.0f s so far", self._model, state, reminded - start)


class BlsTarget(BlsEngine):
    """The target model of this server."""

    def step(self, step: TargetStep) -> TargetResult:
        return self._step(step, TargetResult)


class BlsDrafter(BlsEngine):
    """A drafter model of this server."""

    def step(self, step: DrafterStep) -> DrafterResult:
        return self._step(step, DrafterResult)
