"""Triton's Python backend as far as the bridge uses it, with the law that a request must not be touched after its end.

`install()` before the first import of `python_backend.triton_bridge`; a real server brings its own module.
"""

from __future__ import annotations

import json
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np

FINAL = 1


class TritonError:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = range(4)

    def __init__(self, message, code):
        self.text, self.code = message, code


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


PUBLISHED: dict[str, float] = {}  # what each metric's endpoint shows


class Metric:
    def __init__(self, name):
        self.name = name
        PUBLISHED[name] = 0.0

    def increment(self, value):
        PUBLISHED[self.name] += value

    def set(self, value):
        PUBLISHED[self.name] = value

    def observe(self, value): ...


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name, description, kind):
        self.name = name

    def Metric(self, labels, buckets=()):  # noqa: N802
        return Metric(self.name)


class Sender:
    """One request's responses. `abused` counts what would have touched freed memory."""

    def __init__(self):
        self.responses, self.ended, self.abused, self.left = [], threading.Event(), 0, False

    def send(self, response=None, flags=0):
        if self.ended.is_set():
            self.abused += 1
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        self.responses.append(response)
        if flags & FINAL:
            self.ended.set()

    def is_cancelled(self):
        self.abused += self.ended.is_set()
        return self.left


class Request:
    def __init__(self, inputs, parameters=None, request_id="", batched=True, requested=()):
        self.sender = Sender()
        self._inputs = [Tensor(name, array[None] if batched else array) for name, array in inputs.items()]
        self._parameters, self._id, self._requested = parameters or {}, request_id, requested

    def inputs(self):
        return self._inputs

    def parameters(self):
        return json.dumps(self._parameters)

    def request_id(self):
        return self._id

    def requested_output_names(self):
        """Triton names all of them where the client names none; no test needs their names."""
        return list(self._requested)

    def timeout(self):
        return 0

    def get_response_sender(self):
        return self.sender

    @property
    def errors(self):
        return [response.error.text for response in self.sender.responses if response.error]

    @property
    def ids(self):
        return np.concatenate([r.outputs["output_ids"] for r in self.sender.responses if not r.error]).tolist()


def install() -> ModuleType:
    """Make `import triton_python_backend_utils` find this, unless there is one already."""
    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        TritonError=TritonError,
        TritonModelException=RuntimeError,
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        MetricFamily=MetricFamily,
        Logger=SimpleNamespace(log_error=print, log_warn=print, log_info=print),
    )
    return sys.modules.setdefault(module.__name__, module)
