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

from python_backend.coordinator.reply import Reply, as_request_error
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.worker import OnDeath, Worker
from python_backend.protocol import Tensors
from python_backend.triton_bridge.messages import error_response, response_of

log = logging.getLogger(__name__)

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SWEEP_S = 0.05  # how often clients are checked for having left
TICK_S = 0.5  # how often metrics are published
CLOSE_WAIT_S = 5.0

Make = Callable[[], Any]
Shape = Callable[[Tensors], Tensors]


class TritonResponder:
    """Answers one request; every method returns at once."""

    def __init__(self, sender: Any, outbox: Outbox, shape: Shape = lambda outputs: outputs) -> None:
        """shape: from what the service says to what the model's client asked for."""
        self._sender, self._outbox, self._shape = sender, outbox, shape
        self._left = False

    def send(self, outputs: Tensors, final: bool) -> None:
        self._outbox.put(self, lambda: response_of(self._shape(outputs)), final)

    def fail(self, error: RequestError) -> None:
        self._outbox.put(self, lambda: _error(error), final=True)

    def is_cancelled(self) -> bool:
        """Whether the client had left when the outbox last looked, or can no longer be answered."""
        return self._left

    def deliver(self, make: Make, final: bool) -> None:
        """For the outbox only. Raises what the response, or Triton, raises."""
        self._sender.send(make(), flags=FINAL if final else 0)

    def look(self) -> bool:
        """For the outbox only, before the final answer: whether the client has left."""
        self._left = self._left or bool(self._sender.is_cancelled())
        return self._left

    def lose(self) -> None:
        """For the outbox only: no answer reaches the client any more."""
        self._left = True


Item = tuple[TritonResponder, Make, bool]  # whose, what makes the response, whether it is the last


class Outbox:
    """Sends responses in their order, notices clients that left, and runs a periodic task.

    Triton frees a request with its final response. So the thread that sends it is the one that looks after clients,
    and looks only after those that it has not yet sent one.
    """

    def __init__(
        self,
        tick: Callable[[], None] = lambda: None,
        on_left: Callable[[Reply], None] = lambda _: None,
        on_death: OnDeath = lambda _: None,
    ) -> None:
        """tick: called twice a second. on_left: called with who left. on_death: told of each death of the thread; the
        next one goes on where it ended."""
        self._tick, self._on_left, self._on_death = tick, on_left, on_death
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._in_hand: Item | None = None  # outlives a thread that dies with it
        self._open: dict[TritonResponder, Reply | None] = {}  # None: nobody asks whether the client left
        self._lock = threading.Lock()
        self._closed = False
        self._worker = Worker("outbox", self._run, self._died).start()

    def reply(self, sender: Any, watch: bool = True, shape: Shape = lambda outputs: outputs) -> Reply:
        """watch: notice when the client leaves. shape: from the service's outputs to those of this response."""
        responder = TritonResponder(sender, self, shape)
        reply = Reply(responder)
        with self._lock:
            self._open[responder] = reply if watch else None
        return reply

    def put(self, responder: TritonResponder, make: Make, final: bool) -> None:
        """make: builds the response, here rather than on the caller's thread, which decodes meanwhile."""
        self._queue.put((responder, make, final))

    def close(self) -> None:
        """Send what is queued, then end the thread. A server that no longer takes anything is not waited for."""
        self._closed = True
        self._queue.put(None)
        if not self._worker.join(CLOSE_WAIT_S):
            log.warning("the server took no more answers for %.0f s: %d are lost", CLOSE_WAIT_S, len(self._open))

    def _died(self, reason: str) -> None:
        self._on_death(reason)
        if not self._closed:
            self._worker = Worker("outbox", self._run, self._died).start()

    def _run(self) -> None:
        next_sweep = next_tick = 0.0
        while True:
            if self._in_hand:
                self._deliver(*self._in_hand)
                self._in_hand = None
            now = time.monotonic()
            if now >= next_sweep:
                self._sweep()
                next_sweep = now + SWEEP_S
            if now >= next_tick:
                self._guard(self._tick)
                next_tick = now + TICK_S
            try:
                self._in_hand = self._queue.get(timeout=SWEEP_S)
            except queue.Empty:
                continue
            if self._in_hand is None:
                return

    def _deliver(self, responder: TritonResponder, make: Make, final: bool) -> None:
        """One response. What cannot be built or sent ends its request with an error, and if that fails too, silently:
        then Triton has nobody to answer."""
        if responder not in self._open:
            return
        try:
            responder.deliver(make, final)
        except BaseException as error:
            log.exception("a response was not sent")
            responder.lose()
            final, told = True, as_request_error(error)
            self._guard(responder.deliver, lambda: _error(told), True)
            if not isinstance(error, Exception):
                raise
        finally:
            if final:
                with self._lock:
                    self._open.pop(responder, None)

    def _sweep(self) -> None:
        with self._lock:
            watched = [(responder, reply) for responder, reply in self._open.items() if reply]
        for responder, reply in watched:
            self._guard(self._look, responder, reply)

    def _look(self, responder: TritonResponder, reply: Reply) -> None:
        if responder.look():
            self._on_left(reply)
            with self._lock:
                self._open[responder] = None  # seen; its final answer is still to come

    def _guard(self, action: Callable[..., None], *args: Any) -> None:
        """One client's trouble must not silence the thread that serves all."""
        try:
            action(*args)
        except Exception:
            log.exception("a task of the outbox failed")


def _error(error: RequestError) -> Any:
    return error_response(str(error), error.code)
