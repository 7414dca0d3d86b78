"""The thread that answers clients.

A response is a round trip to the server process of about half a millisecond; from its own thread it overlaps with
the verify call.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.coordinator.request import RequestError
from python_backend.protocol import Tensors
from python_backend.triton_bridge.messages import error_response, response_of

log = logging.getLogger(__name__)

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SWEEP_S = 0.05  # how often clients are checked for having left
TICK_S = 0.5  # how often metrics are published
CLOSE_WAIT_S = 5.0


class TritonResponder:
    """Answers one request; every method returns at once."""

    def __init__(self, sender: Any, outbox: Outbox) -> None:
        self._sender, self._outbox = sender, outbox
        self._cancelled = False

    def send(self, outputs: Tensors, final: bool) -> None:
        self._outbox.put(self, lambda: response_of(outputs), final)

    def fail(self, error: RequestError) -> None:
        self._outbox.put(self, lambda: error_response(str(error), error.code), final=True)

    def is_cancelled(self) -> bool:
        """Whether the client had left when the outbox last looked."""
        return self._cancelled

    def deliver(self, response: Any, final: bool) -> None:
        """For the outbox only."""
        self._sender.send(response, flags=FINAL if final else 0)

    def has_just_left(self) -> bool:
        """For the outbox only: true once, when the client is first seen to have left."""
        before, self._cancelled = self._cancelled, self._cancelled or bool(self._sender.is_cancelled())
        return self._cancelled and not before


class Outbox:
    """Sends responses in their order, notices clients that left, and runs a periodic task."""

    def __init__(
        self,
        tick: Callable[[], None] = lambda: None,
        on_left: Callable[[TritonResponder], None] = lambda _: None,
    ) -> None:
        """tick: called twice a second. on_left: called with who left."""
        self._tick, self._on_left = tick, on_left
        self._queue: queue.SimpleQueue[tuple[TritonResponder, Callable[[], Any], bool] | None] = queue.SimpleQueue()
        self._open: dict[TritonResponder, None] = {}  # a set in the order of arrival
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def responder(self, request: Any, watch: bool = True) -> TritonResponder:
        """watch: notice when the client leaves."""
        responder = TritonResponder(request.get_response_sender(), self)
        if watch:
            with self._lock:
                self._open[responder] = None
        return responder

    def put(self, responder: TritonResponder, response: Callable[[], Any], final: bool) -> None:
        """response: makes it, here rather than on the caller's thread, which decodes meanwhile."""
        self._queue.put((responder, response, final))

    def close(self) -> None:
        """Send what is queued, then end the thread. A server that no longer takes anything is not waited for."""
        self._queue.put(None)
        self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        next_sweep = next_tick = 0.0
        while True:
            now = time.monotonic()
            if now >= next_sweep:
                self._guard(self._sweep)
                next_sweep = now + SWEEP_S
            if now >= next_tick:
                self._guard(self._tick)
                next_tick = now + TICK_S
            try:
                item = self._queue.get(timeout=SWEEP_S)
            except queue.Empty:
                continue
            if item is None:
                return
            self._guard(self._deliver, *item)

    def _deliver(self, responder: TritonResponder, response: Callable[[], Any], final: bool) -> None:
        if final:
            with self._lock:
                self._open.pop(responder, None)
        responder.deliver(response(), final)

    def _sweep(self) -> None:
        with self._lock:
            waiting = list(self._open)
        for responder in waiting:
            if responder.has_just_left():
                self._on_left(responder)

    def _guard(self, action: Callable[..., None], *args: Any) -> None:
        """One client's trouble must not silence the thread that serves all."""
        try:
            action(*args)
        except Exception:
            log.exception("answering a client failed")
