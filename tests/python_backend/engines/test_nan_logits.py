"""Logits that are NaN fail the step of their sequence; without it the others go on as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from python_backend.sampling.corners import LogitsError
from tests.support.checkpoints import load_engine, make_step

HEALTHY, BROKEN = Part(0, 0, [7, 8, 9]), Part(2, 0, [5, 6])


def break_last_row(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row's logits of a pass of several rows are NaN."""
    head = engine.network.head

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden).clone()
        if len(logits) > 1:
            logits[-1] = torch.nan
        return logits

    monkeypatch.setattr(engine.network, "head", broken)


def test_the_others_go_on_without_the_sequence(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load_engine(tiny_llama, 4, 32).step(make_step(HEALTHY))
    engine = load_engine(tiny_llama, 4, 32)
    break_last_row(engine, monkeypatch)
    with pytest.raises(LogitsError, match="NaN for sequence 1 in slot 2"):
        engine.step(make_step(HEALTHY, BROKEN))
    assert engine.step(make_step(HEALTHY)).next_token.tolist() == alone.next_token.tolist()
