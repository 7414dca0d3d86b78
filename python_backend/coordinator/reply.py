"""Where a request leaves: exactly one final answer, whatever happens on the way.

A request has a `Reply` from the moment it can be answered. Whoever answers it last wins nothing: the first final
response or error is the end, and what comes after it is dropped.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.request import RequestError
from python_backend.protocol import Tensors

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 500  # characters of a message that nobody wrote for clients


class Responder(Protocol):
    """The way to one client. Called from the loop's thread; must not block on the client."""

    def send(self, outputs: Tensors, final: bool) -> None: ...

    def fail(self, error: RequestError) -> None: ...

    def is_cancelled(self) -> bool: ...


Ended = Callable[["Reply", RequestError | None], Any]


class Reply:
    """A Responder that ends once and never raises, so that one client's trouble stays its own."""

    def __init__(self, responder: Responder, ended: Ended = lambda _reply, _error: None) -> None:
        """ended: called once, just before the final answer is handed over; with the error, if it is one."""
        self._responder, self._ended = responder, ended
        self._lock = threading.Lock()
        self._open = True
        self.deadline = math.inf  # time.monotonic()

    def send(self, outputs: Tensors, final: bool) -> None:
        if not (self._end(None) if final else self._open):
            return
        try:
            self._responder.send(outputs, final)
        except Exception as error:
            log.exception("answering a client failed")
            told = as_request_error(error)
            self._end(told)
            self._insist(told)

    def fail(self, error: RequestError) -> None:
        if self._end(error):
            try:
                self._responder.fail(error)
            except Exception as raised:
                log.exception("telling a client of its error failed")
                self._insist(as_request_error(raised))

    def is_cancelled(self) -> bool:
        """Whether nobody waits for an answer: the client left, or has its last one."""
        return not self._open or self._responder.is_cancelled()

    def is_for(self, responder: Responder) -> bool:
        """Whether this is the way to that responder."""
        return self._responder is responder

    def _end(self, error: RequestError | None) -> bool:
        """True for the one who ends it."""
        with self._lock:
            first, self._open = self._open, False
        if first:
            try:
                self._ended(self, error)
            except Exception:
                log.exception("noting the end of a request failed")
        return first

    def _insist(self, error: RequestError) -> None:
        """A second try, with an error that is surely plain; there is no third."""
        try:
            self._responder.fail(error)
        except Exception:
            log.exception("a client cannot be answered")


class Replies:
    """The requests that wait for their end, and how those that had it ended. Any thread may use it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._open: dict[Reply, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def take(self, responder: Responder) -> Iterator[Reply]:
        """A request comes in: whatever is raised inside becomes its error."""
        reply = Reply(responder, self._count)
        with contained(reply):
            with self._lock:
                self._open[reply] = None
                self._metrics.set("angelspec_open_requests", len(self._open))
            yield reply

    def fail_all(self, error: RequestError) -> None:
        """End every request that is open now."""
        self._fail(error, lambda _: True)

    def fail_late(self, now: float) -> None:
        """End those whose deadline is over, even where the loop is held up by an engine."""
        self._fail(too_late(), lambda reply: now > reply.deadline)

    def _fail(self, error: RequestError, condition: Callable[[Reply], bool]) -> None:
        with self._lock:
            replies = [reply for reply in self._open if condition(reply)]
        for reply in replies:
            reply.fail(error)

    def _count(self, reply: Reply, error: RequestError | None) -> None:
        with self._lock:
            self._open.pop(reply, None)
            self._metrics.set("angelspec_open_requests", len(self._open))
        how = "finished" if error is None else "cancelled" if error.code == "CANCELLED" else "failed"
        self._metrics.add(f"angelspec_requests_{how}_total")


@contextmanager
def contained(reply: Reply) -> Iterator[Reply]:
    """Whatever is raised inside becomes the request's error, and goes no further."""
    try:
        yield reply
    except Exception as error:
        if not isinstance(error, RequestError):
            log.exception("a request failed unexpectedly")
        reply.fail(as_request_error(error))


def as_request_error(error: BaseException) -> RequestError:
    """What a client is told of an error."""
    if isinstance(error, RequestError):
        return error
    return internal(f"request failed unexpectedly: {type(error).__name__}: {error}"[:MESSAGE_LIMIT])


def internal(message: str) -> RequestError:
    return RequestError(message, "INTERNAL")


def too_late() -> RequestError:
    return unavailable("deadline exceeded before the request was finished")


def unavailable(message: str) -> RequestError:
    return RequestError(message, "UNAVAILABLE")
