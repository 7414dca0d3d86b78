"""From the non-decoupled twin's process to the coordinator's: one private socket, any number of requests in flight.

Not BLS: several decoupled BLS calls at once end the server (a lock_exception inside Triton's Python backend), and a
twin needs one for each request in flight.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Protocol

from python_backend.coordinator.reply import Reply, Responder, contained, unavailable
from python_backend.coordinator.request import ErrorCode, RequestError
from python_backend.coordinator.worker import OnDeath, Worker
from python_backend.protocol import Tensors

SEND_WAIT_S = 5  # a peer that takes nothing for so long is lost
CLOSE_WAIT_S = 2.0
RETRY_S = 0.05
LOOK_S = 0.05  # how often the listener looks whether it is to end


@dataclass(frozen=True)
class Submit:
    """A request of another model's client."""

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
    """A response to it."""

    key: int
    outputs: Tensors
    final: bool


@dataclass(frozen=True)
class Failure:
    """An error in place of the last response."""

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
        with self._socket() as peer:  # a peer that reads no more must not hold up who writes
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_WAIT_S, 0))

    def send(self, message: Submit | Leave | Answer | Failure) -> None:
        """A lost peer is no error here: its end notices by itself. Raises for what cannot be sent at all."""
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:
            self.hang_up()  # half a message may be under way: nothing can follow it

    def receive(self) -> Any:
        """The next message; None once the peer is gone."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def hang_up(self) -> None:
        """End both directions; whoever waits in `receive`, here or there, returns."""
        with suppress(OSError), self._socket() as peer:
            peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For the thread that receives, once it is done."""
        self._connection.close()

    def _socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._connection.fileno()))


class LinkResponder:
    """Answers one request of the twin."""

    def __init__(self, key: int, channel: Channel) -> None:
        self._key, self._channel = key, channel
        self.left = False

    def send(self, outputs: Tensors, final: bool) -> None:
        self._channel.send(Answer(self._key, outputs, final))

    def fail(self, error: RequestError) -> None:
        self._channel.send(Failure(self._key, str(error), error.code))

    def is_cancelled(self) -> bool:
        return self.left


class LinkServer:
    """The coordinator's end."""

    def __init__(self, host: Host, address: str, on_death: OnDeath = lambda _: None) -> None:
        """on_death: told where a thread of the link died; the link itself goes on."""
        self._host, self.address, self._on_death = host, address, on_death
        Path(address).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._file = os.stat(address).st_ino
        self._listener.listen(8)
        self._listener.settimeout(LOOK_S)
        self._closing = False
        self._peers: list[Channel] = []
        self._worker = Worker("link", self._accept, self._died).start()

    def close(self) -> None:
        """Take no more connections and hang up; what waits for an answer fails at the other end."""
        self._closing = True
        self._worker.join(CLOSE_WAIT_S)
        self._listener.close()
        with suppress(OSError):  # Triton loads a model anew before it unloads the old one: then the path is that one's
            if os.stat(self.address).st_ino == self._file:
                Path(self.address).unlink()
        for peer in list(self._peers):
            peer.hang_up()
        with suppress(OSError):  # whoever else made the folder their own keeps it
            Path(self.address).parent.rmdir()

    def _died(self, reason: str) -> None:
        """Take connections again, from a new thread."""
        self._on_death(reason)
        if not self._closing:
            time.sleep(RETRY_S)
            self._worker = Worker("link", self._accept, self._died).start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            accepted.settimeout(None)
            connection = Connection(accepted.detach())
            try:
                channel = Channel(connection)
                Worker("link-peer", partial(self._serve, channel), partial(self._peer_died, channel)).start()
            except BaseException:
                connection.close()  # its end notices, and may try again
                raise

    def _peer_died(self, channel: Channel, reason: str) -> None:
        channel.hang_up()
        self._on_death(reason)

    def _serve(self, channel: Channel) -> None:
        """One twin, until it hangs up. However this ends, it notices, and its requests are given up."""
        responders: dict[int, LinkResponder] = {}
        self._peers.append(channel)
        try:
            while (message := channel.receive()) is not None:
                if isinstance(message, Submit):
                    self._submit(message, channel, responders)
                elif leaving := responders.get(message.key):
                    leaving.left = True
        finally:
            for responder in list(responders.values()):
                responder.left = True
            self._peers.remove(channel)
            channel.hang_up()
            channel.close()

    def _submit(self, message: Submit, channel: Channel, responders: dict[int, LinkResponder]) -> None:
        responder = LinkResponder(message.key, channel)
        reply = Reply(responder, lambda *_: responders.pop(message.key, None))
        with contained(reply):
            responders[message.key] = responder
            self._host.submit(message.tensors, message.parameters, reply, message.request_id, message.timeout_s)


class LinkClient:
    """The twin's end. Connects at the first request, and again after the coordinator was loaded anew."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Reply] = {}
        self._channel: Channel | None = None

    def __len__(self) -> int:
        """Requests that wait for their end."""
        return len(self._waiting)

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
        reply = Reply(responder, lambda *_: self._forget(key))
        with contained(reply):
            with self._lock:
                self._waiting[key] = reply
            try:
                channel = self._connect()
            except OSError:
                raise unavailable("model 'angelspec' is not loaded") from None
            channel.send(Submit(key, tensors, parameters, request_id, timeout_s))

    def leave(self, responder: Responder) -> None:
        """Tell the coordinator that this request's client is gone."""
        with self._lock:
            keys = [key for key, reply in self._waiting.items() if reply.is_for(responder)]
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

    def _forget(self, key: int) -> None:
        with self._lock:
            self._waiting.pop(key, None)

    def _connect(self) -> Channel:
        with self._lock:
            if self._channel is None:
                channel = Channel(Client(self._address, "AF_UNIX"))
                try:
                    Worker("link-answers", partial(self._read, channel), lambda _: self._lose(channel)).start()
                except BaseException:
                    channel.close()
                    raise
                self._channel = channel
            return self._channel

    def _read(self, channel: Channel) -> None:
        """Pass answers on until the coordinator hangs up."""
        while (message := channel.receive()) is not None:
            with self._lock:
                reply = self._waiting.get(message.key)
            if reply is None:
                continue  # it was failed when an earlier connection broke
            if isinstance(message, Failure):
                reply.fail(RequestError(message.message, message.code))
            else:
                reply.send(message.outputs, message.final)
        self._lose(channel)

    def _lose(self, channel: Channel) -> None:
        """Nobody reads it any more: nobody waits for it either, and the next request connects anew."""
        with self._lock:
            if self._channel is channel:
                self._channel = None
            lost = list(self._waiting.values())
        channel.hang_up()
        channel.close()
        for reply in lost:
            reply.fail(unavailable("model 'angelspec' was unloaded or its process died"))
