"""Prompts that begin alike, and conversations whose every turn repeats those before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engine import TargetEngine
from python_backend.protocol import Array, Part, PrefixHit, PrefixQuery, TargetResult, TargetStep
from tests.support.checkpoints import VOCABULARY, make_step
from tests.support.host import Answer, ask, settings_for, start


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def opening(*prompts: tuple[int, list[int]]) -> PrefixQuery:
    return PrefixQuery(
        slot=np.array([slot for slot, _ in prompts], dtype=np.int32),
        row_count=np.array([len(prompt) for _, prompt in prompts], dtype=np.int32),
        token_ids=np.array([t for _, prompt in prompts for t in prompt], dtype=np.int32),
    )


def commit(engine: TargetEngine, slot: int, text: list[int], past: int = 0, **columns: Any) -> Array:
    """Features [n, F] of the rows of `text` from `past` on, as one prompt chunk."""
    return engine.step(make_step(Part(slot, past, text[past:], sample=False), **columns)).features


def leave_first_turn(engine: TargetEngine, text: list[int]) -> None:
    """A chat's first turn, over: rows of the prompt, committed as a chunk, and of the output, committed one by one."""
    commit(engine, 4, text[:50])
    for at in range(50, 100):
        commit(engine, 4, text[: at + 1], at)
    engine.release(np.array([4]))


class Recorder:
    """The engine, how many rows its openings held and how many drafts it accepted."""

    def __init__(self, engine: TargetEngine) -> None:
        self.describe, self.release = engine.describe, engine.release
        self.engine, self.held, self.accepted, self.rejected = engine, 0, 0, 0

    def step(self, step: TargetStep) -> TargetResult:
        result = self.engine.step(step)
        self.accepted += int(result.accepted.sum())
        self.rejected += int((step.draft_count - result.accepted).sum())
        return result

    def open(self, asked: PrefixQuery) -> PrefixHit:
        opened = self.engine.open(asked)
        self.held += int(opened.held.sum())
        return opened


def converse(engine: Recorder, slots: int, folder: Path) -> list[list[int]]:
    """Answers of chats that begin alike, several turns each, served together; some clients leave."""
    settings = settings_for(
        ["lookup"], cache_dir=folder, coordinator={"max_sequences": slots}, budget={"policy": "fixed"}
    )
    service = start(settings, engine, {"lookup": PromptLookup("lookup", slots, 256, 4)})
    chats = [[*tokens(45), *tokens(5 + i % 3, i % 4)] for i in range(8)]
    outputs: list[list[int]] = []
    for turn in range(3):
        answers: list[Answer] = []
        for i, chat in enumerate(chats):
            sampling = {"temperature": 1.0, "seed": 10 * i + turn} if i % 2 else {}
            sampling["repetition_penalty"] = 0.7  # looks back on held rows, and repeats them: drafts get accepted
            answers.append(ask(service, input_ids=chat, max_tokens=30, end_id=-1, stream=True, **sampling))
            if i % 3 == turn:
                ask(service, input_ids=[*chat, 1], max_tokens=50, end_id=-1).cancelled = True
        for i, answer in enumerate(answers):
            outputs.append(answer.wait().ids)
            chats[i] = [*chats[i], *answer.ids, *tokens(5, 100 + turn)]
    service.shutdown()
    return outputs
