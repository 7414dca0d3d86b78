"""Send a case and say what came back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import httpx
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fuzz.case import Case, Given, document, pack

ANSWER_S = 300.0  # longest wait; a case may ask for as many tokens as fit, a minute on a busy machine
GRPC_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
TYPES = {"INT32": np.int32, "FP32": np.float32}


class Server(Protocol):
    @property
    def http_url(self) -> str: ...

    @property
    def grpc_url(self) -> str: ...


@dataclass(frozen=True)
class Outcome:
    """responses: what each response held, by output name, flat. ends: final responses and errors, of which there must
    be one. status: of HTTP, or the name of gRPC's. left: the client closed before the end."""

    responses: tuple[dict[str, list[Any]], ...] = ()
    ends: int = 0
    error: str = ""
    status: str = ""
    left: bool = False
    seconds: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return [token for response in self.responses for token in response.get("output_ids", ())]


class Sender:
    """Connections to one server; any number of threads may use it."""

    def __init__(self, server: Server) -> None:
        self._channel = grpc.insecure_channel(server.grpc_url, GRPC_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        self._http = httpx.Client(base_url=f"http://{server.http_url}/v2/models", timeout=ANSWER_S, limits=limits)

    def close(self) -> None:
        self._channel.close()
        self._http.close()

    def send(self, case: Case) -> Outcome:
        """Never raises for what the server does; a lost connection is an error with the status `lost`."""
        start = time.monotonic()
        route = self._over_http if case.over_http else self._over_grpc
        try:
            parts = route(case)
        except grpc.RpcError as error:
            code = error.code().name
            status = {"DEADLINE_EXCEEDED": "late", "UNAVAILABLE": "lost"}.get(code, code)
            if case.leave is not None and code == "CANCELLED":
                parts = {"left": True}
            else:
                parts = {"error": f"{error.details()}", "status": status, "ends": 1}
                if status == "lost" and "onnect" not in parts["error"] and "ocket" not in parts["error"]:
                    parts["status"] = code  # the server's own UNAVAILABLE: queue, deadline
        except httpx.TimeoutException:
            parts = {"status": "late", "error": f"no answer within {ANSWER_S:.0f} s"}
        except httpx.TransportError as error:
            parts = {"status": "lost", "error": f"{type(error).__name__}: {error}"}
        return Outcome(**parts, seconds=time.monotonic() - start)

    def _over_grpc(self, case: Case) -> dict[str, Any]:
        message = grpc_request(case)
        if case.route == "unary":
            return self._unary(message, case.leave)
        call = self._stub.ModelStreamInfer(iter((message,)), timeout=ANSWER_S)
        if case.leave == 0:
            call.cancel()
            return {"left": True}
        responses, ends, error = [], 0, ""
        for response in call:
            if response.error_message:
                error, ends = response.error_message, ends + 1
                continue
            inner = response.infer_response
            ends += inner.parameters["triton_final_response"].bool_param
            if inner.outputs:
                responses.append(outputs_of(inner))
            if case.leave is not None and len(responses) >= case.leave and not ends:
                call.cancel()
                return {"left": True, "responses": tuple(responses)}
        return {"responses": tuple(responses), "ends": ends, "error": error, "status": "stream"}

    def _unary(self, message: Any, leave: int | None) -> dict[str, Any]:
        call = self._stub.ModelInfer.future(message, timeout=ANSWER_S)
        if leave is not None:
            time.sleep(0.05 * leave)
            if call.cancel():
                return {"left": True}
        return {"responses": (outputs_of(call.result()),), "ends": 1, "status": "OK"}

    def _over_http(self, case: Case) -> dict[str, Any]:
        content, path = document(case), f"/{case.model}/{case.route}"
        headers = {"Content-Type": "application/json"}
        with self._http.stream("POST", path, content=content, headers=headers) as response:
            if case.leave is not None:
                for _ in zip(range(case.leave), response.iter_lines(), strict=False):
                    pass
                return {"left": True}
            text = b"".join(response.iter_bytes()).decode("utf-8", "replace")
        status = str(response.status_code)
        documents = events(text) if text.startswith("data: ") else [text]
        return read_documents(list(documents), status)


def events(text: str) -> Iterator[str]:
    """The documents of a server-sent stream; whatever is none stays as it is and does not parse."""
    for line in text.split("\n"):
        if line:
            yield line.removeprefix("data: ")


def read_documents(documents: list[str], status: str) -> dict[str, Any]:
    """Responses of one HTTP request. An end is an error or a reason to finish."""
    responses, ends, errors = [], 0, []
    for text in documents:
        try:
            body = json.loads(text)
        except json.JSONDecodeError:
            return {"error": f"no JSON: {text[:200]!r}", "status": status, "ends": ends}
        if "error" in body:
            errors.append(str(body["error"]))
            continue
        if "outputs" in body:
            body = {output["name"]: output["data"] for output in body["outputs"]}
        responses.append({name: value if isinstance(value, list) else [value] for name, value in body.items()})
        ends += bool(responses[-1].get("finish_reason", [""])[0])
    error = "; ".join(errors)
    return {"responses": tuple(responses), "ends": ends + len(errors), "error": error, "status": status}


def grpc_request(case: Case) -> Any:
    message = service_pb2.ModelInferRequest(model_name=case.model, id=clean(case.request_id))
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in case.parameters.items():
        parameter = message.parameters[clean(name)]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = clean(value if isinstance(value, str) else str(value))
    for g in case.inputs:
        tensor = message.inputs.add(name=g.name, datatype=g.datatype, shape=g.shape)
        del tensor
        message.raw_input_contents.append(contents(g))
    return message


def contents(g: Given) -> bytes:
    return pack(g.datatype, g.values)


def clean(text: str) -> str:
    """Protobuf takes UTF-8 only."""
    return text.encode("utf-8", "replace").decode()


def outputs_of(response: Any) -> dict[str, list[Any]]:
    """Flat values of what is looked at; of the others their raw bytes."""
    found: dict[str, list[Any]] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        dtype = TYPES.get(output.datatype)
        found[output.name] = np.frombuffer(raw, dtype).tolist() if dtype else [raw[4:].decode("utf-8", "replace")]
    return found
