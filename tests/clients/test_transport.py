"""Streams end, break off and cancel as a user expects, over gRPC and HTTP."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from clients import transport
from clients.address import host_port
from clients.wire import NoServerError, ServerError
from tests.clients.fake_server import LAST, SPECULATION, failure, ids, response, serving, text


def three_responses(request):
    yield response(text_output=text("Hé"), output_ids=ids(1), finish_reason=text(""))
    yield response(text_output=text("llo"), output_ids=ids(2, 3), finish_reason=text(""))
    yield response(final=True, text_output=text("!"), output_ids=ids(4), **LAST)


def endless(request):
    while True:
        yield response(text_output=text("x"), output_ids=ids(1), finish_reason=text(""))
        time.sleep(0.005)


def test_a_grpc_stream_gives_a_chunk_a_response_and_ends_with_the_final_flag():
    with serving(three_responses) as (url, servicer):
        chunks = list(transport.stream_grpc({"text_input": "Hi"}, url))
    assert [(chunk.text, chunk.token_ids) for chunk in chunks] == [("Hé", (1,)), ("llo", (2, 3)), ("!", (4,))]
    assert [chunk.summary is None for chunk in chunks] == [True, True, False]
    assert [i.name for i in servicer.requests[0].inputs] == ["text_input", "stream"]


def test_a_separate_empty_final_response_ends_the_stream_without_a_chunk():
    def script(request):
        yield response(text_output=text("a"), output_ids=ids(1), finish_reason=text(""))
        yield response(final=True)

    with serving(script) as (url, _):
        assert [chunk.text for chunk in transport.stream_grpc({"text_input": "Hi"}, url)] == ["a"]


def test_a_stream_that_came_to_its_end_is_closed_and_not_cancelled():
    with serving(lambda request: iter([response(final=True)])) as (url, servicer):
        assert list(transport.stream_grpc({"text_input": "Hi"}, url)) == []
        assert servicer.client_done.wait(timeout=5)


def test_closing_the_iterator_cancels_the_request():
    with serving(endless) as (url, servicer):
        chunks = transport.stream_grpc({"text_input": "Hi"}, url)
        next(chunks)
        chunks.close()
        assert servicer.client_gone.wait(timeout=5)


def test_the_servers_message_reaches_the_user():
    with (
        serving(lambda request: iter([failure("prompt has 5000 tokens, limit 2048")])) as (url, _),
        pytest.raises(ServerError, match="prompt has 5000 tokens, limit 2048"),
    ):
        list(transport.stream_grpc({"text_input": "Hi"}, url))


def test_an_answer_that_takes_too_long_is_given_up_and_cancelled():
    with serving(endless) as (url, servicer):
        with pytest.raises(ServerError, match=r"within 0.3 s"):
            list(transport.stream_grpc({"text_input": "Hi"}, url, timeout_s=0.3))
        assert servicer.client_gone.wait(timeout=5)


@pytest.fixture
def nobody():
    """An address at which nobody listens."""
    with socket.socket() as bound:  # bound, never listening: the port stays taken
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("call", [transport.stream_grpc, transport.stream_http, transport.generate, transport.infer])
def test_without_a_server_the_error_says_how_to_start_one(call, nobody):
    with pytest.raises(NoServerError, match=rf"no server at {nobody}: start one with `make serve`"):
        list(call({"text_input": "Hi"}, nobody))


def test_asking_whether_a_server_is_there_says_so_too(nobody):
    with pytest.raises(NoServerError):
        transport.require_server(nobody)


EVENT = {"text_output": "a", "output_ids": 1, "finish_reason": ""}
LAST_EVENT = {
    "text_output": "b",
    "output_ids": [2, 3],
    "finish_reason": "stop",
    "num_input_tokens": 1,
    "num_output_tokens": 3,
    "speculation": SPECULATION,
}


@contextmanager
def http_serving(status, body):
    """(address, requests) of an HTTP endpoint that gives every POST the same answer."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, json.loads(sent)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def test_server_sent_events_become_chunks():
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in (EVENT, LAST_EVENT))
    with http_serving(200, events) as (url, requests):
        chunks = list(transport.stream_http({"text_input": "Hi", "stop_words": ["x"]}, url))
    assert [(chunk.text, chunk.token_ids) for chunk in chunks] == [("a", (1,)), ("b", (2, 3))]
    assert chunks[-1].summary is not None
    sent = {"text_input": "Hi", "stop_words": ["x"], "stream": True}
    assert requests == [("/v2/models/angelspec/generate_stream", sent)]


def test_an_error_in_the_middle_of_an_http_stream_is_raised():
    events = f'data: {json.dumps(EVENT)}\n\ndata: {{"error": "the engine failed"}}\n\n'
    with http_serving(200, events) as (url, _):
        chunks = transport.stream_http({"text_input": "Hi"}, url)
        assert next(chunks).text == "a"
        with pytest.raises(ServerError, match="the engine failed"):
            next(chunks)


def test_generate_asks_for_one_response():
    with http_serving(200, json.dumps(LAST_EVENT)) as (url, requests):
        assert transport.generate({"text_input": "Hi"}, url).text == "b"
    assert requests == [("/v2/models/angelspec/generate", {"text_input": "Hi", "stream": False})]


@pytest.mark.parametrize("call", [transport.generate, transport.infer])
def test_a_refused_http_request_carries_the_servers_message(call):
    with (
        http_serving(400, '{"error": "temperature is -1: it should be at least 0"}') as (url, _),
        pytest.raises(ServerError, match="temperature is -1"),
    ):
        call({"text_input": "Hi"}, url)


def test_what_is_no_json_is_reported_and_not_a_traceback():
    with (
        http_serving(502, "<html>bad gateway</html>") as (url, _),
        pytest.raises(ServerError, match=r"status 502.*bad gateway"),
    ):
        transport.generate({"text_input": "Hi"}, url)


class LiveTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A gRPC port that says it is alive."""

    def ServerLive(self, request, context):  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)


@contextmanager
def http_port(path):
    """A port that answers one path over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == path else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("path", "name"), [("/v2/health/live", "HTTP"), ("/metrics", "metrics")])
@pytest.mark.parametrize("scheme", ["", "http://"])
def test_another_port_given_to_grpc_is_called_by_its_name(path, name, scheme):
    with http_port(path) as url:
        for ask in (transport.require_server, lambda u: list(transport.stream_grpc({"text_input": "Hi"}, u))):
            with pytest.raises(NoServerError, match=rf"^{url} is the {name} port, gRPC is another \(8001 by default\)"):
                ask(scheme + url)


def test_the_grpc_port_given_to_http_is_called_by_its_name():
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(LiveTriton(), server)
    url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        for ask in (transport.generate, transport.infer, lambda s, u: list(transport.stream_http(s, u))):
            with pytest.raises(NoServerError, match=rf"^{url} is the gRPC port, HTTP is another \(8000 by default\)"):
                ask({"text_input": "Hi"}, url)
    finally:
        server.stop(grace=0)


def test_addresses_are_taken_with_a_scheme_and_refused_without_a_port():
    assert host_port("http://box:9001/") == host_port("grpc://box:9001") == host_port("box:9001") == "box:9001"
    with pytest.raises(ValueError, match="speaks no https"):
        host_port("https://box:9001")
    with pytest.raises(ValueError, match=r"'box': it has no port, give HOST:PORT"):
        host_port("box")
