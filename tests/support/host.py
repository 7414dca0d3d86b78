"""A Service in process: requests in, collected answers out."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.service import Service
from python_backend.protocol import Tensors
from python_backend.settings import BudgetSettings, CoordinatorSettings, DrafterSettings, Settings
from tests.support.toy import VOCABULARY


class Letters:
    """A codec for toy vocabularies: token n is one character, multi-byte from 64 on; 95 ends."""

    end_ids: tuple[int, ...] = (95,)
    vocabulary_size = VOCABULARY
    control_ids: Mapping[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [ord(c) % 64 for c in text]

    def decode(self, ids: Any) -> str:
        return "".join(chr(33 + t) if t < 64 else chr(0x3B1 + t - 64) for t in ids)

    def render(self, turns: list[dict[str, str]], thinking: bool, allow_control: bool = False) -> list[int]:
        return self.encode("".join(turn["content"] for turn in turns))

    def encode_banned(self, word: str) -> list[tuple[int, ...]]:
        return [tuple(self.encode(word))]


@dataclass
class Answer:
    """A responder that remembers."""

    chunks: list[Tensors] = field(default_factory=list)
    error: RequestError | None = None
    finals: int = 0
    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def send(self, outputs: Tensors, final: bool) -> None:
        assert not self.done.is_set(), "answered after the end"
        self.chunks.append(outputs)
        if final:
            self.finals += 1
            self.done.set()

    def fail(self, error: RequestError) -> None:
        assert not self.done.is_set(), "answered after the end"
        self.error = error
        self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, timeout_s: float = 60.0) -> Answer:
        assert self.done.wait(timeout_s), "no answer"
        return self

    @property
    def ids(self) -> list[int]:
        return np.concatenate([c["output_ids"] for c in self.chunks]).tolist()

    @property
    def text(self) -> str:
        return "".join(c["text_output"][0].decode() for c in self.chunks)

    @property
    def reason(self) -> str:
        return self.chunks[-1]["finish_reason"][0].decode()


def settings_for(drafters: list[str], **sections: Any) -> Settings:
    """Small limits for the toys. sections: coordinator={…}, budget={…}, shared_drafters=…, cache_dir=…"""
    return Settings(
        drafters={name: DrafterSettings(kind="toy") for name in drafters},
        routes={w: drafters[i % len(drafters)] for i, w in enumerate(("chat", "code", "math"))},
        coordinator=CoordinatorSettings(
            **{"max_sequences": 8, "max_length": 256, "depth": 4, "prefill_rows": 16, "allow_control": True}
            | sections.get("coordinator", {})
        ),
        budget=BudgetSettings(**{"profile_context": 8, "profile_repeats": 1} | sections.get("budget", {})),
        shared_drafters=sections.get("shared_drafters", ()),
        cache_dir=sections["cache_dir"],
    )


def start(settings: Settings, target: Any, drafters: dict[str, Any], codec: Any = None) -> Service:
    service = Service(settings, target, drafters, codec or Letters(), Metrics())
    service.start()
    service.wait_started(60)
    return service


def ask(service: Service, request_id: str = "", timeout_s: float = 0.0, **inputs: Any) -> Answer:
    """Submit one request; python values become the tensors that a client would send."""
    answer = Answer()
    tensors = {name: as_tensor(value) for name, value in inputs.items()}
    service.submit(tensors, {}, answer, request_id, timeout_s)
    return answer


def as_tensor(value: Any) -> np.ndarray:
    values = value if isinstance(value, list | tuple) else [value]
    if isinstance(values[0], str | bytes):
        return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=np.object_)
    return np.array([values])


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.005)
