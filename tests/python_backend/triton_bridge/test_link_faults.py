"""A fault at any call that handles a message between the twin and the coordinator: that request is answered, or was
given up with its connection, and the next one is served."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest

from python_backend.coordinator.reply import Reply, as_request_error
from python_backend.coordinator.request import RequestError
from python_backend.triton_bridge.link import LinkClient, LinkServer
from tests.support.faults import Fault, InjectedError
from tests.support.host import Answer, wait_until

# What raises there, its caller answers for; and what notes the end is not itself watched.
BEYOND = {"Worker._run", "LinkClient.submit", "LinkClient._forget", "Reply.is_cancelled", "LinkResponder.is_cancelled"}
BEYOND |= {"LinkClient.submit.<locals>.<lambda>", "LinkServer._submit.<locals>.<lambda>"}


class Echo:
    """Answers at once with twice the number, or keeps the request until its client leaves."""

    def __init__(self):
        self.held = []

    def submit(self, tensors, parameters, responder, request_id, timeout_s):
        if parameters.get("hold"):
            self.held.append(responder)
        elif parameters.get("refuse"):
            responder.fail(RequestError("refused", "INVALID_ARG"))
        else:
            responder.send({"output_ids": tensors["n"]}, final=False)
            responder.send({"output_ids": tensors["n"]}, final=True)


class Pair:
    """A twin's end and a coordinator's end."""

    def __init__(self, folder):
        folder.mkdir()
        self.host, self.deaths = Echo(), []
        self.server = LinkServer(self.host, str(folder / "coordinator"), self.deaths.append)
        self.client = LinkClient(self.server.address)

    def ask(self, n, **parameters):
        """As `models.enter` does."""
        answer, reply = self.next
        try:
            self.client.submit({"n": np.array([n])}, parameters, reply, "", 0.0)
        except InjectedError as error:
            reply.fail(as_request_error(error))
        return answer

    def expect(self):
        """What the next request is answered to."""
        answer = Answer()
        self.next = answer, Reply(answer)

    def leave(self):
        """As the outbox does, which tries again at its next look."""
        for _ in range(2):
            with suppress(InjectedError):
                self.client.leave(self.next[1])

    def close(self):
        self.client.close()
        self.server.close()


def exchange(pair, kind):
    """One request of each kind of message: Submit with Answer, Submit with Failure, Submit with Leave."""
    if kind == "hold":
        answer = pair.ask(1, hold=True)
        wait_until(lambda: pair.host.held or answer.done.is_set())
        pair.leave()
        wait_until(lambda: answer.done.is_set() or pair.host.held[0].is_cancelled())
        return answer
    return pair.ask(1, refuse=True) if kind == "refuse" else pair.ask(1)


@pytest.mark.parametrize("kind", ["answer", "refuse", "hold"])
@pytest.mark.parametrize("thread", ["link-peer", "link-answers", threading.current_thread().name, "link"])
def test_a_fault_at_any_message_costs_at_most_its_request(tmp_path, thread, kind, record_property):
    folders = iter(range(10_000))

    def run(fault):
        with fault.in_new_threads():
            pair = Pair(tmp_path / str(next(folders)))
            pair.expect()
            with fault.here():
                answer = exchange(pair, kind)
            for reply in pair.host.held:
                reply.fail(RequestError("was cancelled", "CANCELLED"))
            assert answer.done.wait(10), fault.at
        for _ in range(2):  # the first may still meet the connection that broke
            pair.expect()
            after = pair.ask(21).wait(10)
        assert after.error is None, (fault.at, after.error)
        assert after.ids == [21, 21], fault.at
        wait_until(lambda: len(pair.client) == 0)
        pair.close()

    record = Fault(0, {thread}, BEYOND)
    run(record)
    numbers = {name: n for n, name in reversed(list(enumerate(record.passed, start=1)))}
    for n in sorted(numbers.values()):
        run(Fault(n, {thread}, BEYOND))
    record_property("points", len(numbers))
    assert numbers or thread == "link"
