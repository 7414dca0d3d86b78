"""One request to a server: over a gRPC stream, by HTTP `/generate` and `/generate_stream`, by HTTP `/infer`.

All take the settings of `wire.INPUTS` and give `wire.Chunk`s; all raise `NoServerError` where nobody listens and
`ServerError` with the server's own message otherwise. Closing a streaming iterator early cancels the request.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from clients import wire
from clients.address import host_port, not_grpc, not_http
from clients.wire import Chunk, NoServerError, ServerError, Settings

Chunks = Generator[Chunk, None, None]

TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 5.0


def stream_grpc(settings: Settings, url: str = wire.GRPC_URL, timeout_s: float = TIMEOUT_S) -> Chunks:
    """Stream an answer over gRPC. A request is cancelled on the server when the iterator is closed."""
    responses: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
    inputs = wire.encode_grpc({**settings, "stream": True})
    url = host_port(url)
    client = triton_grpc.InferenceServerClient(url)
    final = False
    try:
        client.start_stream(lambda result, error: responses.put((result, error)), stream_timeout=timeout_s)
        with suppress(InferenceServerException):  # a stream that died at once says why through its callback
            client.async_stream_infer(wire.MODEL, inputs)
        while not final:
            result, error = responses.get()
            if error is not None:
                raise explain(error, url, timeout_s)
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                yield wire.decode_grpc(result)
    finally:
        # Triton 2.51 may keep the model for ever where a stream is cancelled at its last response (its issue 7626).
        client.stop_stream(cancel_requests=not final)
        client.close()


def require_server(url: str = wire.GRPC_URL) -> None:
    """Raise NoServerError where no server answers on gRPC, ServerError where one does that is not ready."""
    url = host_port(url)
    client = triton_grpc.InferenceServerClient(url)
    try:
        if not client.is_model_ready(wire.MODEL, client_timeout=CONNECT_TIMEOUT_S):
            raise ServerError(f"the server at {url} has no model '{wire.MODEL}' that is ready")
    except InferenceServerException as error:
        raise not_grpc(url) from error
    finally:
        client.close()


def explain(error: InferenceServerException, url: str, timeout_s: float) -> ServerError:
    """A gRPC failure in the user's words. Only failures of the connection itself carry a status."""
    status = error.status()
    if status == "StatusCode.UNAVAILABLE":
        return not_grpc(url)
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return too_slow(timeout_s)
    return ServerError(error.message())


def generate(settings: Settings, url: str = wire.HTTP_URL, timeout_s: float = TIMEOUT_S) -> Chunk:
    """The whole answer in one response of /generate."""
    body = wire.encode_generate({**settings, "stream": False})
    return wire.decode_generate(post(url, f"/v2/models/{wire.MODEL}/generate", body, timeout_s))


def infer(settings: Settings, url: str = wire.HTTP_URL, timeout_s: float = TIMEOUT_S) -> Chunk:
    """The whole answer in one response of /infer, from the model that is not decoupled."""
    body = wire.encode_infer(settings)
    return wire.decode_infer(post(url, f"/v2/models/{wire.INFER_MODEL}/infer", body, timeout_s))


def stream_http(settings: Settings, url: str = wire.HTTP_URL, timeout_s: float = TIMEOUT_S) -> Chunks:
    """Stream an answer by server-sent events of /generate_stream."""
    body = wire.encode_generate({**settings, "stream": True})
    path = f"/v2/models/{wire.MODEL}/generate_stream"
    deadline = time.monotonic() + timeout_s
    with connection(url, timeout_s) as client, client.stream("POST", path, json=body) as response:
        for line in response.iter_lines():
            if time.monotonic() > deadline:
                raise too_slow(timeout_s)
            if line.startswith("data: "):
                yield wire.decode_generate(checked(json.loads(line.removeprefix("data: "))))
            elif line:
                raise ServerError(f"unexpected line from {url}: {line}")


def post(url: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    with connection(url, timeout_s) as client:
        response = client.post(path, json=body)
    try:
        return checked(response.json())
    except json.JSONDecodeError as error:
        raise ServerError(f"{url} answered with status {response.status_code}: {response.text[:200]}") from error


def checked(body: dict[str, Any]) -> dict[str, Any]:
    if "error" in body:
        raise ServerError(body["error"])
    return body


@contextmanager
def connection(url: str, timeout_s: float) -> Iterator[httpx.Client]:
    """An HTTP client whose failures are ours."""
    url = host_port(url)
    try:
        with httpx.Client(
            base_url=f"http://{url}", timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        ) as client:
            yield client
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NoServerError(url) from error
    except httpx.TimeoutException as error:
        raise too_slow(timeout_s) from error
    except httpx.TransportError as error:
        raise not_http(url) or ServerError(f"the connection to {url} broke off: {error}") from error


def too_slow(timeout_s: float) -> ServerError:
    return ServerError(f"no complete answer within {timeout_s:g} s: ask for fewer tokens or raise --timeout")
