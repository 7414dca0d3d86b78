"""Whatever a client sends is answered, or refused by an error that names the input, the value and the limit."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.service import Service
from tests.support.host import Answer, Letters, as_tensor, ask, settings_for, start
from tests.support.toy import VOCABULARY, ToyDrafter, ToyTarget, toy_decode

PROMPT = [10, 20, 30, 40]
GREEDY = toy_decode(PROMPT, 8)
LIMIT = 64 * 256  # bytes of text


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    running = start(
        settings_for(["drafter_toy"], cache_dir=folder, coordinator={"deadline_s": 60}),
        ToyTarget(),
        {"drafter_toy": ToyDrafter()},
    )
    yield running
    running.shutdown()


@pytest.fixture(autouse=True)
def nobody_else_notices(service):
    neighbour = ask(service, input_ids=PROMPT, max_tokens=8, end_id=-1)
    yield
    assert neighbour.wait().ids == GREEDY
    assert ask(service, input_ids=PROMPT, max_tokens=8, end_id=-1).wait().ids == GREEDY


def tokens(service, **more):
    answer = ask(service, **{"input_ids": PROMPT, "max_tokens": 8, "end_id": -1} | more).wait()
    assert answer.error is None, answer.error
    return answer.ids


def refused(service, message, **inputs):
    """message: a regular expression of what the error says."""
    answer = ask(service, **inputs).wait()
    assert answer.error, "was answered"
    assert answer.error.code == "INVALID_ARG", answer.error
    assert re.search(message, str(answer.error)), str(answer.error)
    str(answer.error).encode()  # any channel carries it
    assert len(str(answer.error)) < 500


def with_parameters(service, parameters, timeout_s=0.0, **inputs):
    answer = Answer()
    service.submit({name: as_tensor(value) for name, value in inputs.items()}, parameters, answer, "", timeout_s)
    return answer.wait()


TURNS = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            r'[{"role":"user","content":"hi \ud83d"}]',
            r"messages\[0\].content holds half a surrogate pair at character 3",
        ),
        (r'[{"role":"user","content":"\udc00"}]', "half a surrogate pair at character 0"),
        (r'[{"role":"\ud83d","content":"hi"}]', r"has the role '\\ud83d'"),
        (r'[{"role":"user","content":[{"type":"text","text":"\ud83d"}]}]', r"content\[0\].text holds half"),
        (r'[{"role":"user","content":[{"type":"\ud83d","text":""}]}]', r"has the type '\\ud83d'"),
        (r'[{"role":"user","content":"hi","\ud83d":1}]', r"the member '\\ud83d'"),
        ("[" * 20000, "nested 17 levels deep or more, the limit is 16"),
        ("[" * 20000 + "]" * 20000, "the limit is 16"),
        ('{"a":' * 20000, "the limit is 16"),
        ('["' + r"\"" * 20000 + "[" * 20000, "is not valid JSON"),  # brackets of a string are text
        ("9" * 5000, "messages is not valid JSON"),
        ("[1e999999]", r"messages\[0\] must be an object"),
        ("[NaN]", "messages is not valid JSON: it holds NaN"),
        ("[-Infinity]", "it holds -Infinity"),
        ('[{"role":"user","role":"system","content":"a"}]', "the member 'role' twice"),
        ("null", "non-empty JSON list"),
        ("{}", "non-empty JSON list"),
        ('"hi"', "non-empty JSON list"),
        ("", "messages is not valid JSON"),
        ("[null]", r"messages\[0\] must be an object"),
        ('[{"role":"user","content":null}]', r"messages\[0\] must be an object"),
        ('[{"role":"user","content":5}]', r"messages\[0\] must be an object"),
        ('[{"role":"user","content":{"text":"a"}}]', r"messages\[0\] must be an object"),
        ('[{"role":["user"],"content":"a"}]', r"messages\[0\] must be an object"),
        ('[{"role":"tool","content":"a"}]', "has the role 'tool': expected system, user or assistant"),
        ('[{"role":"user","content":["a"]}]', r"messages\[0\].content\[0\] must be an object"),
        ('[{"role":"user","content":[{"type":"text"}]}]', r"messages\[0\].content\[0\] must be an object"),
        ('[{"role":"user","content":[{"type":"text","text":1}]}]', r"content\[0\] must be an object"),
        (
            '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a"}}]}]',
            "has the type 'image_url': this model takes text only",
        ),
        ('[{"role":"assistant","content":"a","tool_calls":[{"id":1}]}]', "the member 'tool_calls'"),
        ('[{"role":"user","content":"a","name":["a"]}]', r"messages\[0\].name is"),
        ('[{"role":"user","content":"a"}', "messages is not valid JSON"),
        (json.dumps(TURNS * 300), "messages has 300 turns, the limit is 256"),
        (json.dumps([{"role": "user", "content": "a" * (LIMIT + 1)}]), f"bytes of text, the limit is {LIMIT}"),
        (json.dumps([{"role": "user", "content": "a", "name": "a" * LIMIT}]), f"bytes of text, the limit is {LIMIT}"),
        (" " * (8 * LIMIT + 1), f"messages has {8 * LIMIT + 1} bytes, the limit is {8 * LIMIT}"),
        (b"\xed\xa0\xbd", "messages is not valid UTF-8"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_messages_are_refused_by_name(service, messages, message):
    refused(service, message, messages=messages, max_tokens=4)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "user", "content": "hi", "name": None, "tool_calls": [], "refusal": None, "audio": {}},
        {"role": "user", "content": "hi", "name": "Ann"},
    ],
)
def test_parts_and_members_without_a_value_are_taken(service, turn):
    expected = tokens(service, input_ids=Letters().encode("hi"))
    answer = ask(service, messages=json.dumps([turn]), max_tokens=8, end_id=-1).wait()
    assert answer.error is None
    assert answer.ids == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON.map(json.dumps) | st.text() | st.text('[]{}",:\\ud83e09-.ntfals ', max_size=200))
@example('[{"role":"user","content":"\\ud83d"}]')
def test_any_text_of_messages_is_answered_or_refused_by_name(service, messages):
    answer = ask(service, messages=messages.encode("utf-8", "surrogatepass"), max_tokens=1).wait()
    assert answer.error is None or (answer.error.code == "INVALID_ARG" and "messages" in str(answer.error))


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-300, 5e-324, 9e-6, -0.0, 0.0])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}], ids=str)
def test_a_temperature_next_to_nothing_is_greedy(service, temperature, more):
    answer = with_parameters(service, {"temperature": temperature} | more, input_ids=PROMPT, max_tokens=8, end_id=-1)
    assert answer.error is None
    assert answer.ids == GREEDY


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 1e39, r"temperature is '1e\+39': it should be less than or equal to 10000"),
        ("temperature", math.inf, "temperature is 'inf'"),
        ("temperature", math.nan, "temperature is 'nan'"),
        ("temperature", -1e-300, "temperature is '-1e-300'"),
        ("top_p", math.nan, "top_p is 'nan'"),
        ("min_p", 1.5, "min_p is '1.5'"),
        ("min_p", math.inf, "min_p is 'inf'"),
        ("repetition_penalty", 0.0, "repetition_penalty is '0.0': it should be greater than or equal to 0.001"),
        ("repetition_penalty", 1e-38, "repetition_penalty is '1e-38'"),
        ("repetition_penalty", 1e38, "repetition_penalty is '1e\\+38'"),
        ("repetition_penalty", -1.0, "repetition_penalty is '-1.0'"),
        ("presence_penalty", 1e38, "presence_penalty is '1e\\+38': it should be less than or equal to 1000"),
        ("presence_penalty", -1e38, "presence_penalty is '-1e\\+38'"),
        ("frequency_penalty", math.inf, "frequency_penalty is 'inf'"),
        ("frequency_penalty", 3e38, "frequency_penalty is '3e\\+38'"),
        ("length_penalty", math.nan, "length_penalty is 'nan'"),
        ("top_k", -1, "top_k is '-1': it should be greater than or equal to 0"),
        ("top_k", 2**31, "top_k is '2147483648': it should be less than or equal to 2147483647"),
        ("top_k", 1.5, "top_k is '1.5'"),
        ("seed", -1, "seed is '-1'"),
        ("seed", 2**64, f"seed is '{2**64}'"),
        ("max_tokens", 0, "max_tokens is '0'"),
        ("max_tokens", "four", "max_tokens is 'four'"),
        ("min_tokens", -1, "min_tokens is '-1'"),
        ("num_draft_tokens", -1, "num_draft_tokens is '-1'"),
        ("beam_width", 0, "beam_width is '0'"),
        ("beam_width", 2**40, "beam_width is"),
        ("end_id", -2, "end_id is '-2'"),
        ("pad_id", -2, "pad_id is '-2'"),
        ("end_id", 2**40, "end_id is"),
        ("timeout", -1, "timeout is '-1'"),
        ("timeout", 2**63, "timeout is"),
        ("timeout", "soon", "timeout is 'soon'"),
        ("text_input", "hi \ud83d", "text_input holds half a surrogate pair at character 3"),
        ("messages", "hi \ud83d", "messages holds half a surrogate pair at character 3"),
        ("workload", "\ud83d", "workload is "),
        ("stop_words", "\ud83d", "stop_words.0 holds half a surrogate pair"),
    ],
)
def test_values_beyond_the_arithmetic_are_refused_by_name_value_and_limit(service, name, value, message):
    prompt = {} if name in ("text_input", "messages") else {"input_ids": as_tensor(PROMPT)}
    answer = Answer()
    service.submit(prompt, {name: value}, answer, "")
    assert answer.wait().error, "was answered"
    assert answer.error.code == "INVALID_ARG"
    assert re.search(message, str(answer.error)), str(answer.error)
    str(answer.error).encode()


@pytest.mark.parametrize(
    "edge",
    [
        {"max_tokens": 2**31 - 1},
        {"max_tokens": 2**40, "min_tokens": 2**40},
        {"min_tokens": 2**31 - 1},
        {"min_tokens": 9},
        {"num_draft_tokens": 2**31 - 1},
        {"num_draft_tokens": 2**40},
        {"top_k": 2**31 - 1, "temperature": 1.0},
        {"seed": 0, "temperature": 1.0},
        {"seed": 2**64 - 1, "temperature": 1.0},
        {"seed": 2**63, "temperature": 1.0},
        {"temperature": 1e4},
        {"temperature": 1e-5},
        {"top_p": 1e-45, "temperature": 1.0},
        {"top_p": 1e-300, "temperature": 1.0},
        {"top_p": -0.0, "temperature": 1.0},
        {"min_p": 1e-45, "temperature": 1.0},
        {"min_p": 1.0, "temperature": 1.0},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 1e3},
        {"presence_penalty": -1e3, "frequency_penalty": 1e3},
        {"presence_penalty": 1e-45},
        {"length_penalty": -1e308},
        {"end_id": 0},
        {"end_id": VOCABULARY - 1, "pad_id": VOCABULARY - 1},
    ],
    ids=str,
)
def test_values_at_the_edges_are_answered(service, edge):
    answer = with_parameters(service, edge | {"max_tokens": edge.get("max_tokens", 8)}, input_ids=PROMPT)
    assert answer.error is None, answer.error
    assert answer.reason in ("stop", "length")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 1e-38, 1e-45, 3.4e38])
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "length_penalty",
            )
        }
        | {
            name: st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-1, 0, 1, VOCABULARY])
            for name in ("top_k", "max_tokens", "min_tokens", "num_draft_tokens", "end_id", "pad_id", "beam_width")
        },
    )
)
def test_any_numbers_are_answered_or_refused_by_name(service, values):
    columns = {
        name: np.array([value], dtype=np.int32 if isinstance(value, int) else np.float32)
        for name, value in values.items()
    }
    answer = Answer()
    service.submit({"input_ids": as_tensor(PROMPT), **columns}, {"max_completion_tokens": 3}, answer, "")
    if error := answer.wait().error:
        assert error.code == "INVALID_ARG"
        assert str(error).split()[0] in values


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"end_id": VOCABULARY, "min_tokens": 1}, f"end_id holds {VOCABULARY}, the vocabulary has {VOCABULARY} tokens"),
        ({"end_id": 151645, "min_tokens": 1}, "end_id holds 151645, the vocabulary has"),
        ({"pad_id": VOCABULARY}, f"pad_id holds {VOCABULARY}, the vocabulary has"),
        ({"input_ids": [VOCABULARY]}, "input_ids holds 96, the vocabulary has 96 tokens"),
        ({"input_ids": [-1]}, "input_ids holds -1"),
        ({"input_ids": [-(2**31)]}, "input_ids holds -2147483648"),
        ({"input_ids": [7] * 5000}, "prompt has 5000 tokens, the limit is 255"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(service, inputs, message):
    refused(service, message, **{"input_ids": PROMPT, "max_tokens": 8} | inputs)


def test_ids_are_checked_before_the_target_has_told_its_vocabulary(tmp_path):
    settings = settings_for(["drafter_toy"], cache_dir=tmp_path)
    early = Service(settings, ToyTarget(), {"drafter_toy": ToyDrafter()}, Letters(), Metrics())
    bad, good = (ask(early, input_ids=PROMPT, max_tokens=8, min_tokens=1, end_id=end) for end in (151645, 95))
    early.start()
    early.wait_started(60)
    assert "end_id holds 151645" in str(bad.wait().error)
    assert good.wait().error is None
    early.shutdown()


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
@pytest.mark.parametrize("empty", [[""], ["", ""], np.array([], dtype=np.object_)], ids=["one", "two", "none"])
def test_empty_words_are_none(service, name, empty):
    tensors = {"input_ids": as_tensor(PROMPT), "max_tokens": as_tensor(8), "end_id": as_tensor(-1)}
    answer = Answer()
    service.submit(tensors | {name: empty if isinstance(empty, np.ndarray) else as_tensor(empty)}, {}, answer, "")
    assert answer.wait().ids == GREEDY


def test_an_empty_parameter_is_no_word(service):
    words = {"stop_words": "", "bad_words": ""}
    assert with_parameters(service, words, input_ids=PROMPT, max_tokens=8, end_id=-1).ids == GREEDY


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
def test_words_are_bounded_in_number_and_length(service, name):
    many = {"input_ids": PROMPT, "max_tokens": 8}
    refused(
        service, f"{name} holds 129 different words, the limit is 128", **many, **{name: [str(i) for i in range(129)]}
    )
    refused(service, f"{name} holds a word of 257 bytes, the limit is 256", **many, **{name: ["é" * 128 + "a"]})
    assert tokens(service, **{name: ["never there"] * 5000}) == tokens(service, **{name: ["never there"]})
    assert ask(service, **many, **{name: [chr(0x1F300 + i) * 64 for i in range(128)]}).wait().error is None


def test_a_banned_token_outside_the_vocabulary_is_refused(tmp_path):
    class Foreign(Letters):
        def encode_banned(self, word):
            return [(5, 300)]

        def encode(self, text):
            return [300]

    service = start(
        settings_for(["drafter_toy"], cache_dir=tmp_path), ToyTarget(), {"drafter_toy": ToyDrafter()}, Foreign()
    )
    refused(service, "bad_words holds 300, the vocabulary has 96", input_ids=PROMPT, bad_words=["x"])
    refused(service, "text_input holds 300, the vocabulary has 96", text_input="x")
    service.shutdown()


@pytest.mark.parametrize("empty", [{"text_input": ""}, {"messages": ""}, {"text_input": "", "messages": ""}], ids=str)
def test_an_empty_prompt_beside_another_is_none(service, empty):
    assert tokens(service, **empty) == GREEDY


def test_an_error_stays_short_whatever_is_wrong(service):
    answer = Answer()
    service.submit({"input_ids": as_tensor(PROMPT)}, {"stop_words": ["\ud83d"] * 10000}, answer, "")
    assert len(str(answer.wait().error)) < 500


def test_text_longer_than_any_prompt_is_refused_before_it_is_tokenised(service):
    refused(service, f"text_input has {LIMIT + 1} bytes of text, the limit is {LIMIT}", text_input="a" * (LIMIT + 1))


def test_a_prompt_of_key_words_without_end_is_routed(service):
    refused(service, "prompt has .* tokens, the limit is 255", text_input="def " * 4000)


@pytest.mark.parametrize("stop", ["§", ["§", "\u2603"]])
def test_stop_holds_stop_words_where_it_is_text(service, stop):
    text = Letters().decode(GREEDY)
    words = [text[3:5], stop] if isinstance(stop, str) else [text[3:5], *stop]
    answer = with_parameters(service, {"stop": words}, input_ids=PROMPT, max_tokens=8, end_id=-1)
    assert (answer.text, answer.reason) == (text[: text.index(text[3:5])], "stop")
    alone = with_parameters(service, {"stop": text[3:5], "stop_words": "§"}, input_ids=PROMPT, max_tokens=8, end_id=-1)
    assert alone.text == answer.text


@pytest.mark.parametrize("timeout", [1, "1"])
def test_a_timeout_that_is_a_parameter_ends_the_request(service, timeout):
    answer = with_parameters(service, {"timeout": timeout}, input_ids=PROMPT, max_tokens=200, end_id=-1)
    assert answer.error.code == "UNAVAILABLE"
    assert "deadline" in str(answer.error)


@pytest.mark.parametrize("timeout", [0, 2**63 - 1])
def test_a_timeout_of_nothing_or_of_ages_is_none(service, timeout):
    assert with_parameters(service, {"timeout": timeout}, input_ids=PROMPT, max_tokens=8, end_id=-1).ids == GREEDY
