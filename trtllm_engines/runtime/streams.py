"""A CUDA stream of one's own, in order with the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class OwnStream:
    """Everything that is queued inside goes to this stream: after what the caller has queued, before what it will.

    TensorRT synchronises with the device around every pass on the default stream. A CPU has no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def handle(self) -> int:
        """CUDA's own; 0 on a CPU."""
        return self.stream.cuda_stream if self.stream else 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        callers = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(callers)  # memory that the caller gave back may be in use there
        with torch.cuda.stream(self.stream):
            yield
        callers.wait_stream(self.stream)
