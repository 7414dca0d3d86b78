"""What the host writes for a pass is what the device reads for it, however late the device is."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backend.engines import device_results
from python_backend.engines.device_results import settle
from python_backend.protocol import Part
from tests.support.checkpoints import make_step
from trtllm_engines.runtime.staging import Staging


class LateDevice:
    """Makes a copy when somebody waits for it. As a tensor it takes copies, as an event it is waited for."""

    def __init__(self) -> None:
        self.queued: list[Tensor] = []
        self.read: list[list[int]] = []
        self.recorded = 0

    def copy_(self, source: Tensor, non_blocking: bool) -> None:
        assert non_blocking
        self.queued.append(source)

    def record(self) -> None:
        self.recorded = len(self.queued)

    def synchronize(self) -> None:
        self.run(self.recorded)

    def run(self, until: int) -> None:
        self.read += [source.tolist() for source in self.queued[len(self.read) : until]]


def test_passes_that_nobody_waits_for_read_their_own_inputs() -> None:
    late = LateDevice()
    staging = Staging(2, torch.device("cpu"))
    staging.device = staging._sent = late  # type: ignore[assignment]
    chunks = [np.array([i, 10 * i]) for i in range(1, 5)]
    for chunk in chunks:
        staging.send({0: chunk})
    late.run(len(chunks))
    assert late.read == [chunk.tolist() for chunk in chunks]


@pytest.mark.parametrize("sample", [True, False])
def test_only_a_step_that_samples_nothing_waits_for_the_device(sample: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    stream = SimpleNamespace(synchronize=lambda: waits.append("waited"))
    monkeypatch.setattr(device_results.torch.cuda, "current_stream", lambda device: stream)
    step = make_step(Part(0, 0, [1, 2], sample=sample), Part(1, 0, [3], sample=False))
    settle(step, torch.device("cpu"))
    assert waits == []
    settle(step, torch.device("cuda"))
    assert waits == ([] if sample else ["waited"])
