"""A campaign against a server that is none: it counts, finds who did harm, and ends where it should."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.fuzz import campaign, health
from tests.fuzz.campaign import Campaign
from tests.fuzz.health import State
from tests.fuzz.send import Outcome

FINAL = {"text_output": ["a"], "output_ids": [5], "finish_reason": ["length"], "num_output_tokens": [1]}
METRICS = dict.fromkeys(health.IDLE, 0.0) | {"angelspec_free_slots": 4.0}


class Server:
    """Does harm where a case holds `poison`: `how` is called with this server, and its outcome answers."""

    settings = SimpleNamespace(coordinator=SimpleNamespace(max_sequences=4, max_length=2048))

    def __init__(self, how):
        self.how, self.pid, self.slots, self.starts, self.sent = how, 1, 4, 0, 0

    def start(self):
        self.starts += 1
        self.pid, self.slots = 1, 4

    def look(self):
        if not self.pid:
            return State({}, {}, frozenset(), {})
        return State(
            {self.pid: "tritonserver"}, {self.pid: 9}, frozenset(), METRICS | {"angelspec_free_slots": self.slots}
        )


class Sender:
    def __init__(self, server):
        self.server = server

    def send(self, case):
        self.server.sent += 1
        if not self.server.pid:
            return Outcome(status="lost", error="refused")
        if case.parameters.get("seed") == "poison":
            return self.server.how(self.server)
        return Outcome((FINAL,), ends=1, status="200")

    def close(self):
        pass


@pytest.fixture
def begin(monkeypatch):
    monkeypatch.setattr(campaign, "Sender", Sender)
    monkeypatch.setattr(campaign.time, "sleep", lambda _: None)
    monkeypatch.setattr(health, "SETTLE_S", 0.0)
    monkeypatch.setattr(health, "look", lambda server: server.look())
    monkeypatch.setattr(health, "ready_models", lambda _: ("angelspec",))
    draw = campaign.draw

    def poisoned(limits, count, number):
        cases = draw(limits, count, number)
        if number == 3:
            cases[7].parameters["seed"] = "poison"
        return cases

    monkeypatch.setattr(campaign, "draw", poisoned)
    return lambda how, restart=True: (server := Server(how), Campaign(server, server.start if restart else None))


def dies(server):
    server.pid = 0
    return Outcome(status="lost", error="gone")


def leaks(server):
    server.slots -= 1
    return Outcome((FINAL,), ends=1, status="200")


def fails(server):
    return Outcome(ends=1, error="request failed unexpectedly: KeyError: 'seed'", status="500")


def run(begun, cases=60, **options):
    return begun[1].run(cases, number=1, batch=20, told=lambda _: None, **options)


def test_harmless_cases_are_counted_and_nothing_is_found(begin):
    tally = run(begin(dies), cases=40)
    assert (tally.cases, tally.findings) == (40, [])
    assert tally.good > 2


@pytest.mark.parametrize(
    ("how", "symptom"),
    [(dies, "processes changed"), (leaks, "angelspec_free_slots is 3"), (fails, "a bug shows")],
)
def test_who_does_harm_is_found_and_reduced_to_what_does_it(begin, how, symptom):
    tally = run(begin(how))
    (finding,) = tally.findings
    assert symptom in finding.symptom
    assert finding.batch == 3
    assert finding.case.parameters == {"seed": "poison"}
    assert finding.case.inputs == ()


def test_without_a_restart_a_dead_server_ends_the_campaign_and_the_suspects_are_told(begin):
    begun = begin(dies, restart=False)
    tally = run(begun, cases=200)
    (finding,) = tally.findings
    assert "poison" in finding.symptom
    assert begun[0].starts == 0
    assert tally.cases < 100


def test_a_campaign_ends_with_its_time(begin):
    assert run(begin(dies), until=0.0).cases == 0
