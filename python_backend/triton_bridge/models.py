"""The Triton models, each wired in its `model_repository/*/1/model.py`."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from python_backend.coordinator.handshake import StartupError
from python_backend.coordinator.interface import complete
from python_backend.coordinator.reply import Reply, as_request_error, internal
from python_backend.coordinator.service import Service
from python_backend.coordinator.worker import Worker
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.protocol import (
    DESCRIBE,
    DESCRIPTION,
    HOSTED,
    OPEN,
    OPERATION,
    RELEASE,
    STEP,
    DrafterStep,
    PrefixHit,
    PrefixQuery,
    ProtocolError,
    Release,
    TargetStep,
    Tensors,
)
from python_backend.triton_bridge.bls import TARGET, takes_calls
from python_backend.triton_bridge.link import Host, LinkClient, LinkServer, link_address
from python_backend.triton_bridge.messages import error_response, parameters_of, request_id_of, response_of, tensors_of
from python_backend.triton_bridge.observe import TritonMetrics
from python_backend.triton_bridge.outbox import FINAL, Outbox

log = logging.getLogger(__name__)

NOBODY: Mapping[str, Any] = {}
MICROSECONDS = 1e-6


class EngineModel:
    """Serves an engine: the request parameter `operation` selects step, describe, open or release, and `drafter` one of
    the drafters that live beside a target.

    A broken contract is answered with INVALID_ARG, any other failure with INTERNAL and its text; the process lives on.
    """

    def __init__(
        self, engine: Any, step: type[TargetStep] | type[DrafterStep], hosted: Mapping[str, EngineModel] = NOBODY
    ) -> None:
        self._engine, self._step, self._hosted = engine, step, hosted

    @classmethod
    def of_target(cls, engine: TargetEngine, drafters: Mapping[str, DrafterEngine] = NOBODY) -> EngineModel:
        """drafters: those in this process."""
        return cls(engine, TargetStep, {name: cls.of_drafter(drafter) for name, drafter in drafters.items()})

    @classmethod
    def of_drafter(cls, engine: DrafterEngine) -> EngineModel:
        return cls(engine, DrafterStep)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            parameters = parameters_of(request)
            return response_of(self._of(parameters)._run(parameters, tensors_of(request, batched=False)))
        except ProtocolError as error:
            return error_response(str(error), "INVALID_ARG")
        except Exception as error:
            log.exception("engine call failed")
            return error_response(f"{type(error).__name__}: {error}", "INTERNAL")

    def _of(self, parameters: dict[str, Any]) -> EngineModel:
        name = parameters.get(HOSTED)
        if name is None:
            return self
        if name not in self._hosted:
            raise ProtocolError(f"parameter '{HOSTED}' is '{name}', expected one of {sorted(self._hosted)}")
        return self._hosted[name]

    def _run(self, parameters: dict[str, Any], tensors: Tensors) -> Tensors:
        operation = parameters.get(OPERATION, STEP)
        if operation == STEP:
            step = self._step.decode(tensors)
            start = time.perf_counter()
            result = self._engine.step(step)
            engine_ms = np.array([(time.perf_counter() - start) * 1e3], dtype=np.float32)
            outputs: Tensors = replace(result, engine_ms=engine_ms).encode()
            return outputs
        if operation == DESCRIBE:
            text = json.dumps(asdict(self._engine.describe()))
            return {DESCRIPTION: np.array([text.encode()], dtype=np.object_)}
        if operation == OPEN:
            opened: PrefixHit = self._engine.open(PrefixQuery.decode(tensors))
            return opened.encode()
        if operation == RELEASE:
            self._engine.release(Release.decode(tensors).slot)
            return {}
        raise ProtocolError(
            f"parameter '{OPERATION}' is '{operation}', expected {STEP}, {DESCRIBE}, {OPEN} or {RELEASE}"
        )


class CoordinatorModel:
    """Serves the coordinator, to Triton's clients and to the twin."""

    def __init__(self, service: Service, closing: threading.Event, model_config: dict[str, Any]) -> None:
        """closing: ends the service's wait for its engines."""
        self._service, self._closing = service, closing
        self._metrics = TritonMetrics()
        self._outbox = Outbox(self._tick, on_death=service.note_death)
        self._link = LinkServer(service, link_address(), service.note_death)
        self._warm_up_due = bool(model_config.get("model_warmup"))
        self._started = False

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            enter(request, self._outbox, self._take, batched=True)

    def finalize(self) -> None:
        """Triton has waited for all requests but the twin's. Those fail: from now on calls to models get no answer."""
        self._closing.set()
        # Told one by one, because a server once waited for this model and nothing said where it was.
        for name, close in (
            ("link", self._link.close),
            ("loop", self._service.shutdown),
            ("outbox", self._outbox.close),
        ):
            close()
            log.info("unloading: %s ended", name)

    def is_ready(self) -> bool:
        """Asked for by Triton from 26.03 on."""
        return self._service.is_serving()

    def _tick(self) -> None:
        self._service.tick()
        self._service.metrics.publish(self._metrics)

    def _take(self, request: Any, reply: Reply) -> None:
        if not self._started:  # not in initialize: no calls to other models can be made before it has returned
            self._service.start()
            self._started = True
        if self._warm_up_due:
            self._warm_up_due = False
            Worker("warm-up", lambda: self._warm_up(reply), lambda reason: reply.fail(internal(reason))).start()
        else:
            submit(self._service, request, reply, batched=True)

    def _warm_up(self, reply: Reply) -> None:
        """Triton calls a model ready once its warm-up request is answered, so the answer waits for the start-up checks
        and the cost table. Where models cannot be called yet, it must not: all of them would wait for each other."""
        if takes_calls(TARGET):
            try:
                self._service.wait_started()
            except StartupError as error:
                log.error("not serving: %s", error)  # Triton 2.51 may crash on the failed warm-up instead of telling
                reply.fail(internal(str(error)))
                return
        reply.send({}, final=True)


class AliasModel:
    """The coordinator by another name: the same requests, through the link."""

    batched = True

    def __init__(self) -> None:
        self._link = LinkClient(link_address())
        self._outbox = Outbox(on_left=self._link.leave)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            enter(request, self._outbox, self._take, self.batched)

    def finalize(self) -> None:
        self._link.close()
        self._outbox.close()

    def _take(self, request: Any, reply: Reply) -> None:
        submit(self._link, request, reply, self.batched)


class TwinModel(AliasModel):
    """The non-decoupled twin: exactly one response each, no batch axis."""

    batched = False

    def _take(self, request: Any, reply: Reply) -> None:
        submit(self._link, request, reply, self.batched, stream=np.array([False]))


def enter(request: Any, outbox: Outbox, take: Callable[[Any, Reply], None], batched: bool) -> None:
    """The one way in: from here on the request is answered exactly once, and what it raises stays its own."""
    sender = request.get_response_sender()
    reply = None
    try:
        requested = frozenset(request.requested_output_names())
        reply = outbox.reply(sender, shape=lambda outputs: complete(outputs, requested, batched))
        take(request, reply)
    except Exception as error:
        log.exception("taking a request failed")
        told = as_request_error(error)
        if reply:
            reply.fail(told)
        else:
            sender.send(error_response(str(told), told.code), flags=FINAL)


def submit(host: Host, request: Any, reply: Reply, batched: bool, **more: Any) -> None:
    """more: tensors that win over the request's own."""
    tensors = tensors_of(request, batched) | more
    host.submit(tensors, parameters_of(request), reply, request_id_of(request), request.timeout() * MICROSECONDS)
