"""Answers of the coordinator in this process, with the engines and drafters that the settings name."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from build_scripts.exactness.combinations import DFLY, DRAFTERS, LOOKUP, MTP, NONE, Arithmetic, Run
from build_scripts.exactness.questions import Question
from python_backend.assembly.drafters import build_drafter
from python_backend.assembly.engines import build_target
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.service import Service
from python_backend.coordinator.text import TextCodec
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.protocol import Tensors
from python_backend.settings import WORKLOADS, BudgetSettings, CoordinatorSettings, DrafterSettings, Settings

DEPTH = 7
DEPTHS = (1, 3, DEPTH)
ANSWER_S = 600.0  # longest wait for one answer
PREFILL_ROWS = 96  # small, so that prompts are cut and verified beside decoding rows


class Subject(NamedTuple):
    """The model in question."""

    checkpoint: Path
    networks: dict[str, DrafterSettings]  # MTP and DFLY
    questions: list[Question]
    slots: int
    max_length: int
    cache_dir: Path
    target: dict[str, Any]  # further settings of the target


class Pass(NamedTuple):
    """How the questions arrive. Their order and depths are drawn from the seed."""

    name: str
    streams: int  # requests at once, at most
    every: int = 1  # only every so many-th question
    gap_s: float = 0.0  # mean time between two arrivals
    seed: int = 0

    def numbers(self, questions: int) -> list[int]:
        """Of the questions that it asks, in their own order."""
        return list(range(self.seed % self.every, questions, self.every))


@dataclass(frozen=True)
class Answered:
    """What came back for the questions asked, by their number."""

    tokens: dict[int, list[int]]
    drafted: int = 0
    accepted: int = 0


def codec_of(vocabulary_size: int) -> TextCodec:
    """Text of which nobody reads anything: the tokens' numbers, without a special token."""
    numbers = Tokenizer(WordLevel({f"{i} ": i for i in range(vocabulary_size)}, unk_token="0 "))
    numbers.decoder = Fuse()
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=numbers), (), vocabulary_size)


@dataclass
class Collector:
    """A responder that keeps what comes and then lets the next request go."""

    ended: Callable[[], Any]
    chunks: list[Tensors] = field(default_factory=list)
    error: RequestError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def send(self, outputs: Tensors, final: bool) -> None:
        self.chunks.append(outputs)
        if final:
            self._end()

    def fail(self, error: RequestError) -> None:
        self.error = error
        self._end()

    def is_cancelled(self) -> bool:
        return False

    def wait(self) -> Tensors:
        """The one answer. Raises RequestError where it failed, TimeoutError where none came."""
        if not self.done.wait(ANSWER_S):
            raise TimeoutError(f"no answer within {ANSWER_S:g} s")
        if self.error:
            raise self.error
        return self.chunks[-1]

    def _end(self) -> None:
        self.done.set()
        self.ended()


def settings_of(subject: Subject, run: Run, **target: Any) -> Settings:
    """What a user would write for this run. target: further settings of the target."""
    own, *beside = DRAFTERS[run.drafters] or (LOOKUP,)
    drafters = {LOOKUP: DrafterSettings(process="coordinator"), **subject.networks}
    arithmetic = dict(zip(("engine", "quantization", "invariant"), run.arithmetic, strict=True))
    return Settings.model_validate(
        {
            "target": {**arithmetic, "checkpoint": str(subject.checkpoint), **subject.target, **target},
            "drafters": {name: drafters[name].model_dump() for name in (LOOKUP, MTP, DFLY)},
            "routes": dict.fromkeys(WORKLOADS, own),
            "thinking_routes": {},
            "shared_drafters": tuple(beside),
            "coordinator": CoordinatorSettings(
                max_sequences=subject.slots, max_length=subject.max_length, depth=DEPTH, prefill_rows=PREFILL_ROWS
            ).model_dump(),
            "budget": BudgetSettings(
                policy=run.policy,
                rho=(0, 0.25, 0.5, 0.75, 1),
                max_skipped_steps=16,
                profile_context=64,
                profile_repeats=1,
            ).model_dump(),
            "cache_dir": subject.cache_dir,
        }
    )


@contextmanager
def loaded(subject: Subject, arithmetic: Arithmetic, **target: Any) -> Iterator[TargetEngine]:
    """A target for all runs of an arithmetic; its features are those that all drafters read."""
    engine = build_target(settings_of(subject, Run(arithmetic, "off", NONE), **target))
    try:
        yield engine
    finally:
        del engine
        gc.collect()


@contextmanager
def serving(subject: Subject, run: Run, target: TargetEngine) -> Iterator[Service]:
    """The coordinator over the target, with the run's policy and drafters."""
    settings = settings_of(subject, run)
    names = DRAFTERS[run.drafters] or (LOOKUP,)
    drafters: dict[str, DrafterEngine] = {name: build_drafter(name, settings) for name in names}
    service = Service(settings, target, drafters, codec_of(target.describe().vocabulary_size), Metrics())
    service.start()
    try:
        service.wait_started()
        yield service
    finally:
        service.shutdown()


def answer(
    service: Service,
    run: Run,
    questions: list[Question],
    how: Pass,
    tick: Callable[[], Any] = lambda: None,
    only: list[int] | None = None,
) -> Answered:
    """Ask as the pass says. tick: called at every answer. only: these instead of the pass's own numbers.

    Raises RequestError where an answer is an error.
    """
    chance = random.Random(how.seed)
    numbers = list(how.numbers(len(questions)) if only is None else only)
    chance.shuffle(numbers)
    free = threading.Semaphore(how.streams)

    def ended() -> None:
        free.release()
        tick()

    asked: dict[int, Collector] = {}
    for number in numbers:
        free.acquire()
        if how.gap_s:
            time.sleep(chance.expovariate(1 / how.gap_s))
        depth = chance.choice(DEPTHS) if run.drafters != NONE else 0
        asked[number] = Collector(ended)
        service.submit(tensors_of(questions[number], depth), {}, asked[number], f"question-{number}")
    results = {number: collector.wait() for number, collector in asked.items()}
    summaries = [json.loads(r["speculation"][0]) for r in results.values()]
    return Answered(
        {number: r["output_ids"].tolist() for number, r in results.items()},
        sum(s["num_draft_tokens"] for s in summaries),
        sum(s["num_accepted_tokens"] for s in summaries),
    )


def tensors_of(question: Question, depth: int) -> Tensors:
    inputs = {**question.sampling, "num_draft_tokens": depth, "input_ids": question.prompt, "workload": b"chat"}
    kinds = {int: np.int64, float: np.float32}
    return {
        name: np.atleast_1d(np.array(value, dtype=np.object_ if isinstance(value, bytes) else kinds.get(type(value))))
        for name, value in inputs.items()
    }
