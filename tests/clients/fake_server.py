"""A gRPC endpoint with Triton's protocol and no model: it streams what a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

Script = Callable[[service_pb2.ModelInferRequest], Iterator[service_pb2.ModelStreamInferResponse]]


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers each request of a stream by the script, keeps what it was sent, knows when a client went."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[service_pb2.ModelInferRequest] = []
        self.client_gone = threading.Event()
        self.client_done = threading.Event()  # it closed its side of the stream, and did not cancel

    def ModelStreamInfer(self, requests, context):  # noqa: N802
        context.add_callback(self.client_gone.set)
        for request in requests:
            self.requests.append(request)
            yield from self.script(request)
        if context.is_active():
            self.client_done.set()


@contextmanager
def serving(script: Script) -> Iterator[tuple[str, FakeTriton]]:
    """(address, servicer) while the endpoint is up."""
    servicer = FakeTriton(script)
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(grace=0)


def response(final: bool = False, **outputs: np.ndarray) -> service_pb2.ModelStreamInferResponse:
    """A response with these output tensors, the final flag as Triton sets it."""
    message = service_pb2.ModelStreamInferResponse()
    infer = message.infer_response
    infer.parameters["triton_final_response"].bool_param = final
    for name, array in outputs.items():
        texts = array.dtype == np.object_
        datatype = "BYTES" if texts else {"int32": "INT32", "float32": "FP32"}[str(array.dtype)]
        infer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        infer.raw_output_contents.append(serialize_byte_tensor(array).item() if texts else array.tobytes())
    return message


def failure(message: str) -> service_pb2.ModelStreamInferResponse:
    return service_pb2.ModelStreamInferResponse(error_message=message)


def text(value: str) -> np.ndarray:
    return np.array([value.encode()], dtype=np.object_)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


SPECULATION = (
    '{"mean_acceptance_length": 1.5, "num_drafts": 2, "num_draft_tokens": 14, "num_kept_tokens": 4, '
    '"num_accepted_tokens": 1, "acceptance_per_position": [0.5], "drafter": "drafter_prompt_lookup"}'
)
LAST = {
    "finish_reason": text("stop"),
    "num_input_tokens": ids(7),
    "num_output_tokens": ids(3),
    "speculation": text(SPECULATION),
}
