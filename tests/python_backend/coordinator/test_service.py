"""What a client sees: streams, stops, limits, trouble; and that nothing is leaked."""

import re
import threading

import pytest

from python_backend.coordinator.request import RequestError
from tests.support.host import Letters, ask, settings_for, start, wait_until
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode


@pytest.fixture
def parts(tmp_path):
    target, drafter = ToyTarget(), ToyDrafter()
    service = start(settings_for(["drafter_toy"], cache_dir=tmp_path), target, {"drafter_toy": drafter})
    yield service, target, drafter
    service.shutdown()


def idle(service):
    return service._scheduler.free_slots == 8 and service._scheduler.waiting == 0


PROMPT = [10, 20, 30, 40]
EXPECTED = toy_decode(PROMPT, 60)


def test_a_stream_adds_up_to_the_whole(parts):
    service, *_ = parts
    whole = ask(service, input_ids=PROMPT, max_tokens=30, end_id=-1).wait()
    streamed = ask(service, input_ids=PROMPT, max_tokens=30, end_id=-1, stream=True).wait()
    assert len(whole.chunks) == 1
    assert len(streamed.chunks) > 3
    assert (streamed.text, streamed.ids) == (whole.text, whole.ids)
    assert whole.reason == streamed.reason == "length"


def test_the_end_id_stops_and_is_not_output(parts):
    service, *_ = parts
    end = EXPECTED[9]
    first = EXPECTED.index(end)
    answer = ask(service, input_ids=PROMPT, max_tokens=40, end_id=end).wait()
    assert answer.ids == EXPECTED[:first]
    assert answer.reason == "stop"


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_cut_off_even_across_tokens(parts, length, stream):
    service, *_ = parts
    text = Letters().decode(EXPECTED)
    word = text[12 : 12 + length]
    answer = ask(service, input_ids=PROMPT, max_tokens=40, end_id=-1, stop_words=[word, "§§"], stream=stream).wait()
    assert answer.text == text[: text.index(word)]
    assert answer.reason == "stop"


def test_a_cancelled_request_frees_its_slot_within_a_step(parts):
    service, target, _ = parts
    answer = ask(service, input_ids=PROMPT, max_tokens=200, end_id=-1, stream=True)
    wait_until(lambda: answer.chunks)
    answer.cancelled = True
    steps = len(target.steps)
    answer.wait()
    assert answer.error.code == "CANCELLED"
    wait_until(lambda: idle(service))
    assert len(target.steps) <= steps + 2


def test_stop_cancels_the_request_of_the_same_id(parts):
    service, *_ = parts
    answer = ask(service, "first", input_ids=PROMPT, max_tokens=200, end_id=-1, stream=True)
    wait_until(lambda: answer.chunks)
    assert ask(service, "first", stop=True).wait().error.code == "CANCELLED"
    assert answer.wait().error.code == "CANCELLED"


def test_a_failing_pass_fails_its_requests_and_nothing_else(parts):
    service, target, _ = parts
    target.poison = 94
    poisoned = ask(service, input_ids=[94, 1], max_tokens=5).wait()
    assert poisoned.error.code == "INTERNAL"
    assert "poisoned" in str(poisoned.error)
    wait_until(lambda: idle(service))
    healthy = ask(service, input_ids=PROMPT, max_tokens=10, end_id=-1).wait()
    assert healthy.ids == EXPECTED[:10]


def test_a_failing_drafter_slows_down_and_fails_nobody(parts):
    service, _, drafter = parts
    drafter.fail = True
    answer = ask(service, input_ids=PROMPT, max_tokens=20, end_id=-1).wait()
    assert answer.error is None
    assert answer.ids == EXPECTED[:20]
    drafter.fail = False
    assert ask(service, input_ids=PROMPT, max_tokens=20, end_id=-1).wait().ids == EXPECTED[:20]


def test_four_times_more_requests_than_slots_are_all_answered_once(parts):
    service, *_ = parts
    answers = [ask(service, input_ids=[*PROMPT, i], max_tokens=12, end_id=-1) for i in range(32)]
    for i, answer in enumerate(answers):
        assert answer.wait().ids == toy_decode([*PROMPT, i], 12)
        assert answer.finals == 1
    wait_until(lambda: idle(service))


def test_beyond_the_queue_bound_requests_are_refused_at_once(tmp_path):
    settings = settings_for(["drafter_toy"], cache_dir=tmp_path, coordinator={"max_sequences": 2, "max_queue": 3})
    service = start(settings, ToyTarget(slots=2), {"drafter_toy": ToyDrafter(slots=2)})
    answers = [ask(service, input_ids=PROMPT, max_tokens=200, end_id=-1) for _ in range(12)]
    refused = [a for a in answers if a.done.is_set() and a.error]
    assert len(refused) >= 12 - 5 - 2  # two slots, three places, and those that a step took meanwhile
    assert {a.error.code for a in refused} == {"UNAVAILABLE"}
    assert "3 requests are waiting" in str(refused[0].error)
    for answer in answers:
        answer.wait()
    service.shutdown()


def test_a_deadline_ends_a_request(parts):
    service, *_ = parts
    answer = ask(service, timeout_s=0.05, input_ids=PROMPT, max_tokens=252, end_id=-1).wait()
    assert answer.error.code == "UNAVAILABLE"
    assert "deadline" in str(answer.error)


def test_a_deadline_ends_a_request_though_an_engine_never_answers(parts):
    service, target, _ = parts
    stuck, step = threading.Event(), target.step
    target.step = lambda message: stuck.wait(30) and step(message)
    answer = ask(service, timeout_s=0.1, input_ids=PROMPT, max_tokens=10, end_id=-1)
    other = ask(service, input_ids=PROMPT, max_tokens=10, end_id=-1)
    wait_until(lambda: service.tick() or answer.done.is_set())
    assert "deadline" in str(answer.error)
    stuck.set()
    assert other.wait().ids == EXPECTED[:10]
    wait_until(lambda: idle(service))


def test_max_tokens_is_cut_to_what_fits(parts):
    service, *_ = parts
    answer = ask(service, input_ids=[5] * 250, max_tokens=2000, end_id=-1).wait()
    assert (len(answer.ids), answer.reason) == (6, "length")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "exactly one"),
        ({"text_input": ""}, "text_input is empty"),
        ({"text_input": "a", "input_ids": [1]}, "exactly one"),
        ({"input_ids": [1] * 256}, "prompt has 256 tokens, the limit is 255"),
        ({"input_ids": [96]}, "input_ids holds 96, the vocabulary has 96"),
        ({"text_input": "a", "max_tokens": 0}, "max_tokens is '0'"),
        ({"text_input": "a", "max_tokens": -3}, "max_tokens is '-3'"),
        ({"text_input": "a", "temperature": -0.5}, "temperature is '-0.5'"),
        ({"text_input": "a", "temperature": float("nan")}, "temperature is 'nan'"),
        ({"text_input": "a", "top_p": -0.1}, "top_p is '-0.1'"),
        ({"text_input": "a", "top_p": 1.1}, "top_p is '1.1'"),
        ({"text_input": "a", "beam_width": 2}, "beam_width is '2'"),
        ({"text_input": b"\xff\xfe"}, "text_input is not valid UTF-8"),
        ({"text_input": "a", "workload": "poetry"}, "workload is 'poetry'"),
        ({"messages": "[1]"}, r"messages\[0\]"),
        ({"messages": "{"}, "messages is not valid JSON"),
        ({"messages": '[{"role": "robot", "content": "a"}]'}, "role 'robot'"),
        ({"text_input": ["a", "b"]}, "text_input has 2 elements"),
    ],
)
def test_bad_input_is_refused_with_name_value_and_limit(parts, inputs, message):
    service, *_ = parts
    answer = ask(service, **inputs).wait()
    assert answer.error.code == "INVALID_ARG"
    assert re.search(message, str(answer.error)), str(answer.error)
    assert ask(service, input_ids=PROMPT, max_tokens=3, end_id=-1).wait().ids == EXPECTED[:3]


def test_shutdown_answers_running_requests_and_refuses_new_ones(parts):
    service, *_ = parts
    running = [ask(service, input_ids=PROMPT, max_tokens=250, end_id=-1) for _ in range(12)]
    service.shutdown()
    late = ask(service, input_ids=PROMPT, max_tokens=5)
    for answer in (*running, late):
        assert answer.done.is_set()
        assert answer.reason == "length" if answer.finals else answer.error.code == "UNAVAILABLE"
    assert late.error


def test_a_server_without_drafts_needs_no_cost_table(tmp_path):
    settings = settings_for(["drafter_toy"], cache_dir=tmp_path, coordinator={"depth": 0})
    service = start(settings, ToyTarget(), {"drafter_toy": ToyDrafter()})
    assert ask(service, input_ids=PROMPT, max_tokens=10, end_id=-1).wait().ids == EXPECTED[:10]
    service.shutdown()


def test_control_requests_need_permission(tmp_path):
    limits = settings_for(["drafter_toy"], cache_dir=tmp_path, coordinator={"allow_control": False})
    service = start(limits, ToyTarget(), {"drafter_toy": ToyDrafter()})
    with pytest.raises(RequestError, match="allow_control"):
        service.set_policy("off")
    service.shutdown()


def test_an_unknown_policy_is_named(parts):
    service, *_ = parts
    with pytest.raises(RequestError, match="policy is 'magic': expected one of off, fixed, dcut"):
        service.set_policy("magic")


def test_the_prompt_precedes_the_text_where_it_is_asked_for_and_nothing_is_streamed(parts):
    service, *_ = parts
    text, prompt = Letters().decode(EXPECTED[:8]), Letters().decode(PROMPT)
    wanted = {"input_ids": PROMPT, "max_tokens": 8, "end_id": -1, "exclude_input_in_output": False}
    assert ask(service, **wanted).wait().text == prompt + text
    assert ask(service, **wanted, stream=True).wait().text == text


def test_times_of_a_request_come_where_they_are_asked_for(parts):
    service, *_ = parts
    names = [f"{event}_time_ns" for event in ("arrival", "first_scheduled", "first_token", "last_token")]
    wanted = {"input_ids": PROMPT, "max_tokens": 8, "end_id": -1}
    (measured,) = ask(service, **wanted, return_perf_metrics=True).wait().chunks
    times = [int(measured[name][0]) for name in names]
    assert times == sorted(times)
    assert times[0] > 0
    assert not set(names) & ask(service, **wanted).wait().chunks[0].keys()


def test_every_response_says_which_prompt_and_answer_it_belongs_to(parts):
    service, *_ = parts
    for chunk in ask(service, input_ids=PROMPT, max_tokens=8, end_id=-1, stream=True).wait().chunks:
        assert (chunk["batch_index"].tolist(), chunk["sequence_index"].tolist()) == ([0], [0])
