"""From the non-decoupled twin's process to the coordinator's: one private socket, any number of requests in flight.

Not BLS: several decoupled BLS calls at once end the server (a lock_exception inside Triton's Python backend), and a
twin needs one for each request in flight.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from python_backend.coordinator.request import ErrorCode, RequestError
from python_backend.coordinator.sequence import Responder
from python_backend.protocol import Tensors


@dataclass(frozen=True)
class Submit:
    key: int
    tensors: Tensors
    parameters: dict[str, Any]
    request_id: str
    timeout_s: float


@dataclass(frozen=True)
class Leave:
    """The client of this request is gone."""

    key: int


@dataclass(frozen=True)
class Answer:
    key: int
    outputs: Tensors
    final: bool


@dataclass(frozen=True)
class Failure:
    key: int
    message: str
    code: ErrorCode


class Host(Protocol):
    """Where requests go: the service, or the link to it."""

    def submit(
        self,
        tensors: Tensors,
        parameters: dict[str, Any],
        responder: Responder,
        request_id: str,
        timeout_s: float,
    ) -> None: ...


def link_folder(server_pid: int) -> Path:
    """Where the models of this tritonserver meet."""
    return Path(tempfile.gettempdir()) / f"angelspec-{os.getuid()}-{server_pid}"


def link_address() -> str:
    """The socket of this server: both ends are children of one tritonserver.

    Raises PermissionError where another user could reach it."""
    folder = link_folder(os.getppid())
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users; remove it")
    return str(folder / "coordinator")


class Channel:
    """A connection that several threads may write to."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, message: Submit | Leave | Answer | Failure) -> None:
        """A lost peer is no error here: its end notices by itself."""
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:
            return

    def receive(self) -> Any:
        """The next message; None once the peer is gone."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def hang_up(self) -> None:
        """End both directions; whoever waits in `receive`, here or there, returns."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For the thread that receives, once it is done."""
        self._connection.close()


class LinkResponder:
    """Answers one request of the twin."""

    def __init__(self, key: int, channel: Channel, done: Callable[[int], Any]) -> None:
        """done: called with the key once the request is answered."""
        self._key, self._channel, self._done = key, channel, done
        self.left = False

    def send(self, outputs: Tensors, final: bool) -> None:
        if final:
            self._done(self._key)
        self._channel.send(Answer(self._key, outputs, final))

    def fail(self, error: RequestError) -> None:
        self._done(self._key)
        self._channel.send(Failure(self._key, str(error), error.code))

    def is_cancelled(self) -> bool:
        return self.left


class LinkServer:
    """The coordinator's end."""

    def __init__(self, host: Host, address: str) -> None:
        self._host, self.address = host, address
        Path(address).unlink(missing_ok=True)
        self._listener = Listener(address, "AF_UNIX", backlog=8)
        self._closing = False
        self._peers: list[Channel] = []
        self._thread = threading.Thread(target=self._accept, name="link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections and hang up; what waits for an answer fails at the other end."""
        self._closing = True
        Client(self.address, "AF_UNIX").close()  # wakes accept
        self._thread.join()
        self._listener.close()
        for peer in list(self._peers):
            peer.hang_up()
        Path(self.address).parent.rmdir()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            if self._closing:
                connection.close()
                return
            self._peers.append(Channel(connection))
            threading.Thread(target=self._serve, args=(self._peers[-1],), name="link-peer", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        responders: dict[int, LinkResponder] = {}
        while (message := channel.receive()) is not None:
            if isinstance(message, Submit):
                responder = LinkResponder(message.key, channel, lambda key: responders.pop(key, None))
                responders[message.key] = responder
                self._host.submit(message.tensors, message.parameters, responder, message.request_id, message.timeout_s)
            elif leaving := responders.get(message.key):
                leaving.left = True
        for responder in list(responders.values()):
            responder.left = True
        self._peers.remove(channel)
        channel.close()


class LinkClient:
    """The twin's end. Connects at the first request, and again after the coordinator was loaded anew."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Responder] = {}
        self._channel: Channel | None = None

    def submit(
        self,
        tensors: Tensors,
        parameters: dict[str, Any],
        responder: Responder,
        request_id: str,
        timeout_s: float,
    ) -> None:
        """Forward a request; every outcome goes through the responder."""
        key = next(self._keys)
        with self._lock:
            self._waiting[key] = responder
        try:
            channel = self._connect()
        except OSError:
            self._fail([key], "model 'angelspec' is not loaded")
            return
        channel.send(Submit(key, tensors, parameters, request_id, timeout_s))

    def leave(self, responder: Responder) -> None:
        """Tell the coordinator that this request's client is gone."""
        with self._lock:
            keys = [key for key, waiting in self._waiting.items() if waiting is responder]
            channel = self._channel
        for key in keys:
            if channel:
                channel.send(Leave(key))

    def close(self) -> None:
        """Hang up; what waits for an answer fails."""
        with self._lock:
            channel = self._channel
        if channel:
            channel.hang_up()

    def _connect(self) -> Channel:
        with self._lock:
            if self._channel is None:
                self._channel = Channel(Client(self._address, "AF_UNIX"))
                threading.Thread(target=self._read, args=(self._channel,), name="link", daemon=True).start()
            return self._channel

    def _read(self, channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            done = isinstance(message, Failure) or message.final
            with self._lock:
                responder = self._waiting.pop(message.key, None) if done else self._waiting.get(message.key)
            if responder is None:
                continue  # it was failed when an earlier connection broke
            if isinstance(message, Failure):
                responder.fail(RequestError(message.message, message.code))
            else:
                responder.send(message.outputs, message.final)
        with self._lock:
            self._channel, lost = None, list(self._waiting)
        channel.close()
        self._fail(lost, "model 'angelspec' was unloaded or its process died")

    def _fail(self, keys: list[int], message: str) -> None:
        with self._lock:
            responders = [self._waiting.pop(key, None) for key in keys]
        for responder in responders:
            if responder:
                responder.fail(RequestError(message, "UNAVAILABLE"))
