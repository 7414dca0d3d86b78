"""Bad input and trouble: each refused or survived with a message that helps, and the server keeps serving."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from clients import transport, wire
from clients.wire import ServerError

pytestmark = pytest.mark.server

PROMPT = {"text_input": "The capital of France is", "max_tokens": 4}


@pytest.fixture(autouse=True)
def still_serving(server):
    yield
    assert transport.generate(PROMPT, server.http_url).token_ids
    wait_for(lambda: server.slots_in_use() == 0)


def post(server, body, path="generate", model="angelspec"):
    return httpx.post(f"http://{server.http_url}/v2/models/{model}/{path}", json=body, timeout=60)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": ""}, "text_input is empty"),
        ({"max_tokens": 4}, "exactly one of text_input, messages and input_ids"),
        ({"text_input": "word " * 3000}, r"prompt has \d+ tokens, the limit is 2047"),
        (PROMPT | {"max_tokens": 0}, "max_tokens is '0'"),
        (PROMPT | {"max_tokens": -1}, "max_tokens is '-1'"),
        (PROMPT | {"max_tokens": "four"}, "signed-integer"),  # Triton reads JSON before we do
        (PROMPT | {"max_tokens": [1, 2]}, "batch size does not match"),
        (PROMPT | {"temperature": -1.0}, "temperature is '-1.0'"),
        (PROMPT | {"top_p": -0.1}, "top_p is '-0.1"),
        (PROMPT | {"top_p": 1.5}, "top_p is '1.5'"),
        (PROMPT | {"beam_width": 4}, "beam_width is '4'"),
        (PROMPT | {"workload": "poetry"}, "workload is 'poetry'"),
        ({"messages": "not json"}, "messages is not valid JSON"),
        ({"messages": "[]"}, "non-empty"),
        ({"messages": '[{"role": "user"}]'}, r"messages\[0\]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_refused_by_name(server, body, message):
    response = post(server, body)
    assert response.status_code >= 400
    assert re.search(message, response.json()["error"]), response.text


def infer(server, name, array, datatype):
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    tensor = triton_grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    prompt = triton_grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"Hello"], dtype=np.object_))
    inputs = [tensor] if name == "text_input" else [prompt, tensor]
    with pytest.raises(InferenceServerException) as caught:
        client.infer("angelspec_infer", inputs)
    client.close()
    return caught.value


def test_invalid_utf8_is_refused(server):
    error = infer(server, "text_input", np.array([b"\xff\xfe\x00"], dtype=np.object_), "BYTES")
    assert "text_input is not valid UTF-8" in error.message()


def test_nan_is_refused(server):
    error = infer(server, "temperature", np.array([np.nan], dtype=np.float32), "FP32")
    assert "temperature is 'nan'" in error.message()


def test_a_wrong_dtype_is_refused(server):
    error = infer(server, "max_tokens", np.array([3.0], dtype=np.float32), "FP32")
    assert "max_tokens" in error.message()


def test_a_wrong_shape_is_refused(server):
    error = infer(server, "max_tokens", np.array([3, 4], dtype=np.int32), "INT32")
    assert "max_tokens" in error.message()


def test_an_unknown_input_is_refused(server):
    error = infer(server, "max_tokenz", np.array([3], dtype=np.int32), "INT32")
    assert "max_tokenz" in error.message()


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.1)


LONG = {"messages": wire.chat_messages(("user", "Tell me a long story.")), "max_tokens": 1500, "min_tokens": 1500}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_client_that_leaves_mid_stream_frees_its_slot(server, protocol):
    open_stream = {"grpc": transport.stream_grpc, "http": transport.stream_http}[protocol]
    stream = open_stream(LONG, {"grpc": server.grpc_url, "http": server.http_url}[protocol])
    next(stream)
    wait_for(lambda: server.slots_in_use() == 1)
    stream.close()
    wait_for(lambda: server.slots_in_use() == 0)


def test_a_unary_grpc_client_that_gives_up_frees_its_slot(server):
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    tensors = []
    for name, value, dtype in (("text_input", b"Once", np.object_), ("max_tokens", 1500, np.int32)):
        tensors.append(triton_grpc.InferInput(name, [1], "BYTES" if dtype is np.object_ else "INT32"))
        tensors[-1].set_data_from_numpy(np.array([value], dtype=dtype))
    with pytest.raises(InferenceServerException, match="Deadline"):
        client.infer("angelspec_infer", tensors, client_timeout=1.5)
    wait_for(lambda: server.slots_in_use() == 0)
    client.close()


def test_four_times_more_requests_than_slots_are_each_answered_once(server):
    count = 4 * server.slots
    request = {"max_tokens": 6, "min_tokens": 6}
    with ThreadPoolExecutor(count) as pool:
        answers = list(
            pool.map(
                lambda i: list(transport.stream_grpc(request | {"text_input": f"Number {i} is"}, server.grpc_url)),
                range(count),
            )
        )
    for chunks in answers:
        assert sum(chunk.summary is not None for chunk in chunks) == 1
        assert sum(len(chunk.token_ids) for chunk in chunks) == 6


def test_beyond_the_queue_bound_requests_are_refused_at_once(small_server):
    """slots 2, queue 3: of 12 long requests at least 5 are refused while the others run."""
    outcomes: list[str] = []
    lock = threading.Lock()

    def ask(i):
        request = {"text_input": f"Number {i} is", "max_tokens": 60, "min_tokens": 60}
        try:
            outcome = str(len(transport.generate(request, small_server.http_url).token_ids))
        except ServerError as error:
            outcome = str(error)
        with lock:
            outcomes.append(outcome)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [o for o in outcomes if "queue is full" in o]
    assert len(outcomes) == 12
    assert len(refused) >= 5
    assert all(o == "60" for o in outcomes if o not in refused)


def test_an_engine_call_that_raises_fails_its_requests_only(small_server):
    """The small server's target raises on a magic token (see conftest)."""
    with pytest.raises(ServerError, match="engine exploded on purpose"):
        transport.generate({"input_ids": [small_server.magic_token], "max_tokens": 4}, small_server.http_url)
    assert len(transport.generate(PROMPT, small_server.http_url).token_ids) == 4
    wait_for(lambda: small_server.slots_in_use() == 0)


def test_a_passing_neighbour_does_not_notice_an_engine_call_that_raises(small_server):
    """Both are in the pass that raises."""
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(
            transport.generate, PROMPT | {"max_tokens": 60, "min_tokens": 60}, small_server.http_url
        )
        for _ in range(3):
            with pytest.raises(ServerError, match="engine exploded on purpose"):
                transport.generate({"input_ids": [small_server.magic_token], "max_tokens": 4}, small_server.http_url)
        assert len(neighbour.result().token_ids) == 60
    assert small_server.metric("angelspec_failed_passes_total") >= 3


@pytest.mark.parametrize(("model", "points"), [("angelspec", 30), ("angelspec_infer", 10)])
def test_a_fault_anywhere_before_the_queue_costs_one_request_its_answer(small_server, model, points, record_property):
    """Fault 1, 2, … until a request has passed them all."""
    url, canary = f"http://{small_server.http_url}/v2/models/{model}", None
    with httpx.Client(timeout=30) as client:
        for n in range(1, 1000):
            body = {"text_input": PROMPT["text_input"], "parameters": {"max_tokens": 4, "fault": n}}
            answer = client.post(f"{url}/generate", json=body)
            plain = client.post(f"{url}/generate", json=PROMPT)
            assert plain.status_code == 200, (n, plain.text)
            canary = canary or plain.json()["output_ids"]
            assert plain.json()["output_ids"] == canary
            if "injected at" not in answer.text:
                break
        assert answer.status_code == 200, answer.text
        assert n > points
    record_property("points", n - 1)
    wait_for(lambda: small_server.slots_in_use() == 0)
    wait_for(lambda: small_server.metric("angelspec_open_requests") == 0)
