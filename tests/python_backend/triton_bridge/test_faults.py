"""Whatever raises, wherever: the request is answered once and let go, and the next one is served."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.support.faults import Fault, InjectedError
from tests.support.host import Letters, settings_for, wait_until
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode
from tests.support.triton import PUBLISHED, Request, TritonError

PROMPT = [10, 20, 30, 40]
EXPECTED = toy_decode(PROMPT, 6)
INPUTS = {
    "input_ids": np.array(PROMPT, dtype=np.int32),
    "max_tokens": np.array([6], dtype=np.int32),
    "end_id": np.array([-1], dtype=np.int32),
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Starts coordinators in this process, and ends them."""
    from python_backend.coordinator.metrics import Metrics
    from python_backend.coordinator.service import Service
    from python_backend.triton_bridge.models import CoordinatorModel

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = []

    def coordinator():
        settings = settings_for(["drafter_toy"], cache_dir=tmp_path, budget={"policy": "fixed"})
        settings = settings.model_copy(
            update={"coordinator": settings.coordinator.model_copy(update={"allow_control": False})}
        )
        service = Service(settings, ToyTarget(), {"drafter_toy": ToyDrafter()}, Letters(), Metrics())
        model = CoordinatorModel(service, threading.Event(), {})
        model.service = service
        running.append(model)
        return model

    yield coordinator
    for model in running:
        model.finalize()


def ask(model, **more):
    request = Request(INPUTS | more)
    model.execute([request])
    return request


def is_served(request):
    assert request.sender.ended.wait(20), "no answer"
    return not request.errors and request.ids == EXPECTED


def is_quiet(model):
    service = model.service
    return len(service._replies) == 0 and service._scheduler.free_slots == 8 and service._scheduler.waiting == 0


def each_fault(run, **where):
    """Runs without a fault first, then with one at the first and at the last call of each function that was called.
    Returns the functions that raised."""
    record = Fault(0, **where)
    run(record)
    numbers = {}
    for n, name in enumerate(record.passed, start=1):
        numbers.setdefault(name, []).append(n)
    points = []
    for n in sorted({n for calls in numbers.values() for n in (calls[0], calls[-1])}):
        run(fault := Fault(n, **where))
        if fault.at:  # threads do not run the same calls every time
            points.append(fault.at)
    return points


def test_a_request_that_fails_between_execute_and_the_queue_is_answered_once_and_hurts_nobody(make, record_property):
    """Only the door itself does not count: what raises before it, Triton answers."""
    model = make()
    assert is_served(ask(model))

    def run(fault):
        with fault.here():
            request = ask(model)
        assert request.sender.ended.wait(20), f"no answer with a fault at {fault.at}"
        if fault.at:
            assert request.errors == [] or "injected" in request.errors[0], fault.at
        wait_until(lambda: is_quiet(model) and not model._outbox._open)
        assert is_served(ask(model)), fault.at
        assert (len(request.sender.responses), request.sender.abused) == (1, 0), fault.at

    points = each_fault(run, threads={threading.current_thread().name}, beyond={"CoordinatorModel.execute", "enter"})
    record_property("points", len(points))
    assert len(points) > 30
    assert {"submit", "Service.submit", "parse", "Scheduler.submit", "Outbox.reply", "Reply.__init__"} <= set(points)


@pytest.mark.parametrize("thread", ["decode-loop", "outbox"])
def test_a_fault_in_a_thread_ends_what_it_held_and_the_next_request_is_served_or_refused_with_the_reason(
    make, thread, record_property
):
    """A thread dies only where its outermost function raises; the loop then says so instead of serving. What notes the
    death of a thread and the end of a request is not itself watched."""
    outcomes = {}

    def run(fault):
        with fault.in_new_threads():
            model = make()
            request = ask(model)
        assert request.sender.ended.wait(20), f"no answer with a fault at {fault.at}"
        sent = [request, ask(model)]
        if not (served := is_served(sent[1])) and model.is_ready():  # it was this one that the fault met
            sent.append(ask(model))
            served = is_served(sent[2])
        if not served:
            assert thread == "decode-loop", fault.at
            assert "injected" in sent[1].errors[0], (fault.at, sent[1].errors)
            assert not model.is_ready(), fault.at
        outcomes.setdefault(served, []).append(fault.at)
        wait_until(lambda: not model._outbox._open)
        for each in sent:
            assert (len(each.sender.responses), each.sender.abused) == (1, 0), fault.at
        if served:
            wait_until(lambda: is_quiet(model))
        model.finalize()

    each_fault(run, threads={thread}, beyond={"Worker._run", "Replies._count"})
    record_property("points", [len(outcomes[True]), len(outcomes.get(False, []))])
    assert len(outcomes[True]) > (50 if thread == "decode-loop" else 10)
    started = {"Service._prepare", "Service._run", "check", "DecodeLoop.__init__"}
    assert thread == "outbox" or started & set(outcomes[False])


@pytest.mark.parametrize(
    ("part", "text", "named"),
    [
        ("parameters", b'{"a": 1, "key": "\xed\xb0\x80"}', "request parameter 'key'"),
        ("parameters", b'{"\xed\xb0\x80": 1}', "request parameter '\ufffd\ufffd\ufffd'"),
        ("request_id", b"\xed\xb0\x80", "request id"),
    ],
)
def test_what_is_no_text_is_the_clients_fault(make, part, text, named):
    """Triton takes a lone surrogate of JSON for a parameter or an id, and cannot hand it over."""
    model, request = make(), Request(INPUTS)
    setattr(request, part, text.decode)
    model.execute([request])
    assert request.sender.ended.wait(5)
    assert f"{named} is not valid UTF-8" in request.errors[0]
    assert request.sender.responses[0].error.code == TritonError.INVALID_ARG
    assert is_served(ask(model))


def test_a_response_that_cannot_be_built_becomes_an_error(make):
    model = make()
    reply_to = Request(INPUTS)
    reply = model._outbox.reply(reply_to.get_response_sender())
    reply.send({"text_output": None}, final=False)
    model._outbox.put(reply._responder, lambda: 1 / 0, final=False)
    assert reply_to.sender.ended.wait(5)
    assert "ZeroDivisionError" in reply_to.errors[0]
    assert reply.is_cancelled()
    reply.send({}, final=True)
    assert is_served(ask(model))
    assert reply_to.sender.abused == 0


def test_a_dead_outbox_is_replaced_and_counted(make):
    model = make()

    def die():
        raise SystemExit("told to")

    dead = model._outbox._worker
    request = Request(INPUTS)
    reply = model._outbox.reply(request.get_response_sender())
    model._outbox.put(reply._responder, die, final=False)
    wait_until(lambda: not dead.is_alive())
    assert is_served(ask(model))
    assert "told to" in request.errors[0]
    wait_until(lambda: PUBLISHED["angelspec_thread_deaths_total"] == 1)


def test_a_dead_loop_fails_its_requests_and_readiness_says_so(make):
    model = make()
    assert is_served(ask(model))
    assert model.is_ready()
    wait_until(lambda: PUBLISHED["angelspec_ready"] == 1)

    def die(*_):
        raise SystemExit("told to")

    model.service._loop.step = die
    request = ask(model)
    assert request.sender.ended.wait(5)
    assert "thread 'decode-loop' died of SystemExit: told to" in request.errors[0]
    wait_until(lambda: not model.is_ready() and PUBLISHED["angelspec_ready"] == 0)
    later = ask(model)
    assert later.sender.ended.wait(5)
    assert "not serving: thread 'decode-loop' died" in later.errors[0]


def test_injected_faults_are_no_errors_that_the_code_knows():
    assert not issubclass(InjectedError, RuntimeError | ValueError | OSError | KeyError)
