"""Continuous batching over a target engine: many conversations at once, features captured on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from python_backend.engine import TargetEngine
from python_backend.protocol import NO_TOKEN, Part, TargetResult, TargetStep, row_starts
from python_backend.sampling.params import SamplingParams, columns
from training.corpus.requests import ChatFormat, Request
from training.corpus.stops import Stop, StopRule

PREFILL_ROWS = 128  # prompt rows of a step, beside the decoding rows; as many as slots where these are more
USER_TURN = SamplingParams(temperature=1.0, top_p=0.95)
SHORTEST_TURN, LONGEST_TURN = 4, 96  # tokens of a user turn that the model writes; others are dropped
SHORT_ANSWER = 128  # tokens of a first answer that may be followed by a second user turn
SHORTEST_ANSWER = 4  # tokens; shorter conversations are dropped


@dataclass(frozen=True, eq=False)
class Written:
    """A finished conversation. The last token was never fed: there is one row of features less than tokens."""

    request: Request
    ids: tuple[int, ...]
    response_start: int  # of the last answer
    stop: Stop
    features: torch.Tensor  # [len(ids) - 1, F] bfloat16; F is 0 where the engine captures nothing

    @property
    def response_length(self) -> int:
        return len(self.ids) - self.response_start


@dataclass(eq=False)
class Conversation:
    """One that is being written, in a slot of the engine."""

    request: Request
    slot: int
    features: torch.Tensor  # [max_length, F] of the slot
    ids: list[int]
    cached: int = 0
    rule: StopRule | None = None  # none while the model writes the user turn
    response_start: int = 0
    followed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.followed = not self.request.follow_up

    @property
    def params(self) -> SamplingParams:
        if self.rule is None:
            return SamplingParams(USER_TURN.temperature, top_p=USER_TURN.top_p, seed=self.request.seed)
        return SamplingParams(self.request.temperature, seed=self.request.seed)

    @property
    def pending(self) -> int:
        return len(self.ids) - self.cached


class Sampler:
    """Writes conversations with all slots of an engine. The same requests on the same engine give the same text."""

    def __init__(
        self,
        engine: TargetEngine,
        chat: ChatFormat,
        end_ids: tuple[int, ...],
        control: frozenset[int],
        chunk: int = PREFILL_ROWS,
    ) -> None:
        """control: tokens that no user turn may hold, and that end an answer if one appears there.

        chunk: prompt rows of one conversation in a step.
        """
        self.engine, self.chat, self.end_ids, self.control = engine, chat, end_ids, control
        self.chunk = chunk
        about = engine.describe()
        self.max_length = about.max_length
        self.buffers = torch.zeros(about.slots, about.max_length, about.feature_size, dtype=torch.bfloat16)

    def write(
        self, requests: Iterator[Request], enough: float, on_step: Callable[[int, int], None] = lambda *_: None
    ) -> Iterator[Written]:
        """Conversations in the order of their ends.

        Takes requests until there are none or the response tokens, finished and begun, are enough; then lets the rest
        finish. on_step: gets response tokens and rows of every step.
        """
        running: list[Conversation] = []
        free = list(range(len(self.buffers)))
        done, exhausted = 0, False
        while True:
            begun = sum(len(c.ids) - c.response_start for c in running if c.rule)
            while free and not exhausted and done + begun < enough:
                if (request := next(requests, None)) is None:
                    exhausted = True
                elif self._fits(request):
                    running.append(self._begin(request, free.pop()))
            if not running:
                return
            fed, rows, result = self._step(running)
            emitted = 0
            for i, conversation in enumerate(fed):
                token = int(result.next_token[i])
                emitted += token != NO_TOKEN and conversation.rule is not None
                over, stop = self._append(conversation, token) if token != NO_TOKEN else (False, None)
                if not over:
                    continue
                running.remove(conversation)
                free.append(conversation.slot)
                if stop and (written := _finish(conversation, stop)).response_length >= SHORTEST_ANSWER:
                    done += written.response_length
                    yield written
            on_step(emitted, rows)

    def _fits(self, request: Request) -> bool:
        """Whether its prompt and a user turn leave room for the whole answer."""
        turn = LONGEST_TURN + len(self.chat.after_user) if request.magpie else 0
        return len(request.prompt) + turn + request.cap <= self.max_length

    def _begin(self, request: Request, slot: int) -> Conversation:
        conversation = Conversation(request, slot, self.buffers[slot], list(request.prompt))
        if not request.magpie:
            self._answer(conversation)
        return conversation

    def _answer(self, conversation: Conversation) -> None:
        conversation.response_start = len(conversation.ids)
        conversation.rule = StopRule((*self.end_ids, *self.control), conversation.request.cap)

    def _step(self, running: list[Conversation]) -> tuple[list[Conversation], int, TargetResult]:
        """One pass: a row of everyone who decodes, and prompt chunks within the budget. Returns who was fed, with how
        many rows in all, and what came of it."""
        budget, fed, counts = max(PREFILL_ROWS, len(self.buffers)), [], []
        for conversation in running:
            count = conversation.pending
            if count > 1:
                count = min(count, budget, self.chunk)
                budget -= count
            if count:
                fed.append(conversation)
                counts.append(count)
        parts = [
            Part(c.slot, c.cached, c.ids[c.cached : c.cached + n], sample=c.pending == n)
            for c, n in zip(fed, counts, strict=True)
        ]
        result = self.engine.step(TargetStep.of(parts, **columns([c.params for c in fed], [0] * len(fed))))
        if self.buffers.shape[2]:
            features, starts = torch.from_numpy(result.features).bfloat16(), row_starts(result.feature_count)
            for i, conversation in enumerate(fed):
                captured = features[starts[i] : starts[i + 1]]
                conversation.features[conversation.cached : conversation.cached + len(captured)] = captured
        for conversation, count in zip(fed, counts, strict=True):
            conversation.cached += count
        return fed, sum(counts), result

    def _append(self, conversation: Conversation, token: int) -> tuple[bool, Stop | None]:
        """Add a token. Returns whether the conversation is over, and why if it is worth keeping."""
        ids, request = conversation.ids, conversation.request
        if conversation.rule is None:
            written = len(ids) - len(self.chat.before_user)
            if token in self.end_ids:
                ids.extend(self.chat.after_user)
                self._answer(conversation)
                return written < SHORTEST_TURN, None
            ids.append(token)
            return token in self.control or written >= LONGEST_TURN, None
        ids.append(token)
        stop = conversation.rule.add(token)
        if token in self.end_ids and not conversation.followed and self._room(conversation):
            conversation.followed = True
            ids.extend(request.follow_up)
            self._answer(conversation)
            return False, None
        return stop is not None, stop

    def _room(self, conversation: Conversation) -> bool:
        """Whether a second turn may follow this answer."""
        request, length = conversation.request, len(conversation.ids)
        short = length - conversation.response_start <= SHORT_ANSWER
        return short and length + len(request.follow_up) + request.cap <= self.max_length


def _finish(conversation: Conversation, stop: Stop) -> Written:
    ids = conversation.ids
    features = conversation.features[: len(ids) - 1].clone()
    return Written(conversation.request, tuple(ids), conversation.response_start, stop, features)
