"""Engines behind one synchronous BLS call per operation.

Calls come from one thread at a time: concurrent BLS calls are where Triton's Python backend is known to crash.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

import triton_python_backend_utils as pb_utils

from python_backend.engine import EngineError, EngineLostError
from python_backend.protocol import (
    DESCRIBE,
    DESCRIPTION,
    HOSTED,
    OPEN,
    OPERATION,
    RELEASE,
    STEP,
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    Message,
    PrefixHit,
    PrefixQuery,
    ProtocolError,
    Release,
    TargetResult,
    TargetStep,
    Tensors,
)
from python_backend.settings import Settings
from python_backend.triton_bridge.messages import pb_tensors

log = logging.getLogger(__name__)

Result = TypeVar("Result", bound=Message)

TARGET = "target"  # the Triton model that serves the target
READY_POLL_S = 0.05
REMIND_S = 10.0
CAN_RELOAD = os.environ.get("ANGELSPEC_MODEL_CONTROL") == "explicit"  # set by the launcher

# Triton's words. They are looked for because asking instead, with is_model_ready, ends the server where it raises.
SERVER_NOT_READY = "Server not ready"
MODEL_NOT_READY = "is not ready"
PROCESS_DIED = "is not healthy"


def takes_calls(model: str) -> bool:
    """Whether the server lets models be called: not before all those given at its start are loaded."""
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=[DESCRIPTION], inputs=[], parameters={OPERATION: DESCRIBE}
    )
    response = request.exec()
    return not (response.has_error() and SERVER_NOT_READY in response.error().message())


class BlsEngine:
    """What target and drafters share. Every failure is an EngineError with the engine's own message."""

    def __init__(self, model: str, closing: threading.Event, hosted: str = "") -> None:
        """model: the Triton model to call. closing: ends the wait for it. hosted: the drafter in it that is meant."""
        self._model, self._closing = model, closing
        self._parameters = {HOSTED: hosted} if hosted else {}

    def describe(self) -> Description:
        """Ask the model, waiting until it is loaded."""
        start = reminded = time.monotonic()
        while True:
            try:
                (text,) = self._call(DESCRIBE, {}, [DESCRIPTION])[DESCRIPTION]
                break
            except EngineError as error:
                if SERVER_NOT_READY not in str(error) and MODEL_NOT_READY not in str(error):
                    raise
            if self._closing.wait(READY_POLL_S):
                raise EngineError("server is shutting down")
            if time.monotonic() > reminded + REMIND_S:
                reminded = time.monotonic()
                log.info("waiting for model '%s' to be loaded, %.0f s so far", self._model, reminded - start)
        values = json.loads(text)
        return Description(**values | {"feature_layers": tuple(values["feature_layers"])})

    def release(self, slot: Array) -> None:
        self._call(RELEASE, Release(slot=slot).encode(), [])

    def _ask(self, operation: str, message: Message, result: type[Result]) -> Result:
        outputs = self._call(operation, message.encode(), [column.name for column in result.columns()])
        try:
            return result.decode(outputs)
        except ProtocolError as error:
            raise EngineError(f"{self._model} answered wrongly: {error}") from error

    def _call(self, operation: str, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=list(outputs),
            inputs=pb_tensors(tensors),
            parameters={OPERATION: operation, **self._parameters},
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
        if PROCESS_DIED not in message:
            raise EngineError(message)
        if not CAN_RELOAD:
            raise EngineLostError(f"the process of model '{self._model}' died: restart the server")
        log.error("%s: %s Loading it again.", self._model, message)
        pb_utils.unload_model(self._model)
        pb_utils.load_model(self._model)  # the server reports itself as not ready meanwhile
        raise EngineLostError(f"the process of model '{self._model}' died; it was replaced")


class BlsTarget(BlsEngine):
    """The target model of this server."""

    def open(self, opening: PrefixQuery) -> PrefixHit:
        return self._ask(OPEN, opening, PrefixHit)

    def step(self, step: TargetStep) -> TargetResult:
        return self._ask(STEP, step, TargetResult)


class BlsDrafter(BlsEngine):
    """A drafter model of this server."""

    def step(self, step: DrafterStep) -> DrafterResult:
        return self._ask(STEP, step, DrafterResult)


def bls_drafters(settings: Settings, closing: threading.Event) -> dict[str, BlsDrafter]:
    """Every drafter of the settings, in its own model or within the target's."""
    inside = settings.drafters_in("target")
    return {
        name: BlsDrafter(TARGET, closing, hosted=name) if name in inside else BlsDrafter(name, closing)
        for name in settings.drafters
    }
