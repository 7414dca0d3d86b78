"""The fuzzer: it tries every name, draws the same cases again, tells harm from help, and finds the smallest case."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fuzz import schema
from tests.fuzz.case import ROUTES, Case, Given, document, pack
from tests.fuzz.health import State, harm
from tests.fuzz.judge import judge
from tests.fuzz.send import Outcome, grpc_request, read_documents
from tests.fuzz.shrink import shrink
from tests.fuzz.strategies import Limits, draw

LIMITS = Limits(max_length=2048, vocabulary=49152, models=schema.DECOUPLED)
PLAIN = Case("generate", "angelspec", (Given("text_input", "BYTES", (1, 1), ("Hi",)),))
FINAL = {"text_output": ["a"], "output_ids": [5], "finish_reason": ["length"], "num_output_tokens": [1]}


@pytest.fixture(scope="module")
def drawn():
    return draw(LIMITS, 600, 1)


def test_every_input_route_and_model_is_tried(drawn):
    tried = {given.name for case in drawn for given in case.inputs} | {n for c in drawn for n in c.parameters}
    assert schema.names().keys() <= tried  # those of later too: they are read from the code
    assert {case.route for case in drawn} == set(ROUTES)
    assert {case.model for case in drawn} == {*schema.DECOUPLED, schema.TWIN}


def test_the_same_number_draws_the_same_cases(drawn):
    assert [case.to_json() for case in draw(LIMITS, 20, 1)] == [case.to_json() for case in drawn[:20]]
    assert [case.to_json() for case in draw(LIMITS, 20, 2)] != [case.to_json() for case in drawn[:20]]


def test_every_case_can_be_sent_and_printed_and_read_again(drawn):
    for case in drawn:
        assert document(case) if case.over_http and case.body != b"" else grpc_request(case) is not None
        assert Case.from_json(case.to_json()).to_json() == case.to_json()


def test_nearly_all_cases_ask_for_few_tokens_or_leave(drawn):
    for case in drawn:
        asked = [v for given in case.inputs if given.name in schema.LENGTHS for v in given.values]
        assert case.leave is not None or all(not isinstance(v, int) or v <= 6 for v in asked)


def test_values_that_do_not_fit_are_packed_into_as_many_bytes():
    assert pack("INT32", (2**32 + 5, "abc", None, float("nan"))) == b"\5\0\0\0" + b"\3\0\0\0" + b"\4\0\0\0" + bytes(4)
    assert pack("FP32", (10**400,)) == bytes.fromhex("0000807f")
    assert pack("BYTES", ("\ud83d", b"\xff")) == b"\3\0\0\0\xed\xa0\xbd" + b"\1\0\0\0\xff"


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome((FINAL,), ends=1, status="200"), "answered"),
        (Outcome(ends=1, error="top_p is '2.0': it should be less than 1", status="400"), "refused by name"),
        (Outcome(ends=1, error="Unable to parse 'id': attempt to access", status="400"), "refused by Triton"),
        (Outcome(ends=1, error="parameter 'a' has invalid type. It should be", status="400"), "refused by Triton"),
        (Outcome(ends=1, error="Converting keyword: 'x': Unable to parse 'data'", status="400"), "refused by Triton"),
        (Outcome(ends=1, error="attempt to get members for non-object", status="400"), "refused by Triton"),
        (Outcome(ends=1, error="Stream removed (received metadata size exceeds hard limit", status="UNKNOWN"), "hurt"),
        (Outcome(ends=1, error="deadline exceeded before the request was finished", status="503"), "deadline"),
        (Outcome(left=True), "left"),
        (Outcome(ends=1, error="stopped on request", status="499"), "cancelled"),
        (Outcome((FINAL, FINAL), ends=2, status="200"), "hurt"),
        (Outcome((FINAL | {"finish_reason": [""]},), ends=1, status="200"), "hurt"),
        (Outcome((FINAL | {"num_output_tokens": [2]},), ends=1, status="200"), "hurt"),
        (Outcome(ends=0, status="stream"), "hurt"),
        (Outcome(status="late", error="no answer within 60 s"), "hurt"),
        (Outcome(status="lost", error="ReadError"), "hurt"),
        (Outcome(ends=1, error="something is wrong", status="400"), "hurt"),
        (Outcome(ends=1, error="top_p is '2.0'", status="500"), "hurt"),
        (Outcome(ends=1, error="request failed unexpectedly: IndexError: end_id", status="400"), "hurt"),
    ],
)
def test_an_outcome_is_judged(outcome, verdict):
    assert judge(PLAIN, outcome)[0] == verdict


def test_a_stream_with_two_last_events_is_harm():
    body = json.dumps({name: value[0] for name, value in FINAL.items()})
    assert judge(PLAIN, Outcome(**read_documents([body], "200")))[0] == "answered"
    assert judge(PLAIN, Outcome(**read_documents([body, body], "200")))[0] == "hurt"
    assert judge(PLAIN, Outcome(**read_documents([body, '{"error": "top_p is bad"}'], "200")))[0] == "hurt"


IDLE = State(
    {1: "tritonserver", 2: "angelspec"},
    {1: 40, 2: 9},
    frozenset({"region-1"}),
    {
        "angelspec_free_slots": 32,
        "angelspec_waiting_requests": 0,
        "angelspec_open_requests": 0,
        "angelspec_running_sequences": 0,
    },
)


@pytest.mark.parametrize(
    ("now", "symptom"),
    [
        (IDLE, ""),
        (replace(IDLE, threads={1: 44, 2: 9}), ""),
        (replace(IDLE, threads={1: 40, 2: 10}), "angelspec has 10 threads, had 9"),
        (replace(IDLE, threads={1: 60, 2: 9}), "tritonserver has 60 threads, had 40"),
        (replace(IDLE, processes={1: "tritonserver", 3: "angelspec"}), "processes changed"),
        (State({}, {}, frozenset(), {}), "processes changed"),
        (replace(IDLE, regions=frozenset({"region-1", "region-2"})), "regions are left: ['region-2']"),
        (replace(IDLE, metrics=IDLE.metrics | {"angelspec_free_slots": 31}), "angelspec_free_slots is 31"),
        (replace(IDLE, metrics=IDLE.metrics | {"angelspec_open_requests": 1}), "angelspec_open_requests is 1"),
        (replace(IDLE, metrics=IDLE.metrics | {"angelspec_thread_deaths_total": 1}), "deaths_total went from 0 to 1"),
    ],
)
def test_a_server_that_is_not_as_before_is_told(now, symptom):
    found = harm(IDLE, now, slots=32, spare_threads=8)
    assert symptom in found
    assert bool(symptom) == bool(found)


def test_shrinking_leaves_only_what_does_the_harm():
    noise = tuple(Given(name, "INT32", (1, 1), (7,)) for name in ("top_k", "min_tokens", "pad_id"))
    bad = Given("stop_words", "BYTES", (1, 40), ("word",) * 20 + ("xx\ud83dyy" * 50,) + ("word",) * 19)
    case = Case("generate", "angelspec", (*noise, bad), {"timeout": 5, "seed": 3}, "an id", leave=2)

    def hurts(candidate):
        return any("\ud83d" in value for given in candidate.inputs for value in given.values if isinstance(value, str))

    smallest = shrink(case, hurts, tries=500)
    assert smallest == Case("generate", "angelspec", (Given("stop_words", "BYTES", (1, 1), ("\ud83d",)),))


def test_shrinking_ends_after_its_tries():
    sent = []
    shrink(Case("generate", "angelspec", body=b"x" * 4096), lambda c: bool(sent.append(c)) or True, tries=7)
    assert len(sent) == 7
