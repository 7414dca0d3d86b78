"""Requests over the toy target's vocabulary, and conversations that it writes."""

from __future__ import annotations

from typing import Any

from python_backend.engine import TargetEngine
from tests.support.toy import ToyTarget
from training.corpus.requests import ChatFormat, Request
from training.corpus.sampler import Sampler, Written

CHAT = ChatFormat(before_user=(11, 12), after_user=(13, 14), between=(15, 16))
NEVER = 95  # no end token among those that the toy emits in these tests


def request(prompt: tuple[int, ...] = (11, 12, 20, 13, 14), **changes: Any) -> Request:
    usual = {"domain": "chat", "magpie": False, "follow_up": (), "temperature": 0.0, "cap": 20, "seed": 5}
    return Request(**{**usual, "prompt": prompt, **changes})


def write(
    requests: list[Request],
    engine: TargetEngine | None = None,
    end_ids: tuple[int, ...] = (NEVER,),
    control: frozenset[int] = frozenset(),
    enough: float = float("inf"),
) -> list[Written]:
    engine = engine or ToyTarget(feature_size=4)
    return list(Sampler(engine, CHAT, end_ids, control).write(iter(requests), enough))
