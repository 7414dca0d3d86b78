"""Memory that the host writes for each pass, and its copy on the device."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt
import torch


class Event(Protocol):
    """What is used of a CUDA event."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class Staging:
    """[size] int32 on either side. The copy is queued, and reads this memory when the device gets to it.

    A step that samples nothing never waits for the device, so the host can be passes ahead of it: before it writes, it
    waits until the copy before has been made.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._written = self.host.numpy()
        self._sent: Event | None = torch.cuda.Event() if on_gpu else None

    def send(self, values: dict[int, npt.NDArray[Any]]) -> None:
        """Write each array at its start, and queue the copy on the current stream."""
        if self._sent:
            self._sent.synchronize()  # at once where nothing has been recorded yet
        for start, value in values.items():
            self._written[start : start + value.size] = value.reshape(-1)
        self.device.copy_(self.host, non_blocking=True)
        if self._sent:
            self._sent.record()
