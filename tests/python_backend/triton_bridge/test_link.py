"""The twin's requests reach the coordinator's process and come back, however many are in flight."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from python_backend.coordinator.request import RequestError
from python_backend.triton_bridge.link import LinkClient, LinkServer, link_address
from tests.support.host import Answer, wait_until


class Echo:
    """A service that answers with the number it is given, when it is let."""

    def __init__(self):
        self.held = []
        self.hold = False
        self.seen = []

    def submit(self, tensors, parameters, responder, request_id, timeout_s):
        self.seen.append((parameters, request_id, timeout_s))
        if self.hold:
            self.held.append(responder)
        elif "fail" in parameters:
            responder.fail(RequestError(parameters["fail"], "INVALID_ARG"))
        else:
            responder.send({"output_ids": tensors["n"] * 2}, final=True)


@pytest.fixture
def host():
    return Echo()


@pytest.fixture
def server(host, tmp_path):
    (tmp_path / "link").mkdir()
    running = LinkServer(host, str(tmp_path / "link" / "coordinator"))
    yield running
    if Path(running.address).exists():
        running.close()


@pytest.fixture
def client(server):
    connected = LinkClient(server.address)
    yield connected
    connected.close()


def ask(client, n, **parameters):
    answer = Answer()
    client.submit({"n": np.array([n], dtype=np.int32)}, parameters, answer, f"request {n}", 1.5)
    return answer


def test_a_request_arrives_whole_and_its_answer_comes_back(client, host):
    assert ask(client, 21, top_k=3).wait().ids == [42]
    assert host.seen == [({"top_k": 3}, "request 21", 1.5)]


def test_an_error_keeps_its_code_and_text(client):
    error = ask(client, 1, fail="top_p is 2").wait().error
    assert (error.code, str(error)) == ("INVALID_ARG", "top_p is 2")


def test_many_requests_in_flight_are_each_answered_once(client):
    answers = {}

    def work(start):
        for n in range(start, 400, 8):
            answers[n] = ask(client, n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: answer.wait().ids for n, answer in answers.items()} == {n: [2 * n] for n in range(400)}


def test_a_client_that_leaves_is_seen_by_the_coordinator(client, host):
    host.hold = True
    answer = ask(client, 1)
    wait_until(lambda: host.held)
    assert not host.held[0].is_cancelled()
    client.leave(answer)
    wait_until(host.held[0].is_cancelled)


def test_requests_of_a_twin_that_dies_are_cancelled(server, host):
    host.hold = True
    client = LinkClient(server.address)
    ask(client, 1)
    wait_until(lambda: host.held)
    client.close()
    wait_until(host.held[0].is_cancelled)


def test_a_coordinator_that_is_unloaded_fails_what_it_has_not_answered(client, server, host):
    host.hold = True
    answer = ask(client, 1)
    wait_until(lambda: host.held)
    server.close()
    error = answer.wait().error
    assert (error.code, str(error)) == ("UNAVAILABLE", "model 'angelspec' was unloaded or its process died")
    wait_until(host.held[0].is_cancelled)


def test_without_coordinator_a_request_is_refused_and_later_ones_are_served(tmp_path, host):
    address = str(tmp_path / "coordinator")
    client = LinkClient(address)
    error = ask(client, 1).wait().error
    assert (error.code, str(error)) == ("UNAVAILABLE", "model 'angelspec' is not loaded")
    server = LinkServer(host, address)
    assert ask(client, 2).wait().ids == [4]
    client.close()
    server.close()


def test_a_coordinator_that_is_loaded_anew_is_reached_though_the_old_one_closes_last(tmp_path, host):
    (tmp_path / "link").mkdir()
    address = str(tmp_path / "link" / "coordinator")
    old = LinkServer(host, address)
    new = LinkServer(host, address)
    old.close()
    client = LinkClient(address)
    assert ask(client, 4).wait().ids == [8]
    client.close()
    new.close()
    assert not (tmp_path / "link").exists()


def test_the_socket_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Path(link_address()).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(os.getppid()) in folder.name
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="open to other users"):
        link_address()
