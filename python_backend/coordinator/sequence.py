"""One request's state while it is served; everything that can be derived is derived."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from python_backend.budget.draft_payoff import Worth
from python_backend.coordinator.cost import Cost
from python_backend.coordinator.reply import Reply
from python_backend.coordinator.stream import TextStream
from python_backend.protocol import Array
from python_backend.sampling.params import SamplingParams
from python_backend.settings import Workload

NO_SLOT = -1


@dataclass
class SpeculationStats:
    """What speculation did for one request."""

    steps: int = 0  # verify passes that decoded
    emitted: int = 0  # tokens of those passes
    drafted: int = 0
    kept: int = 0
    accepted: int = 0
    plain_ms: float = 0.0  # predicted time of plain decoding for the tokens of the passes whose time is known
    spent_ms: float = 0.0  # time of those passes
    accepted_at: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # [D]

    def record(self, drafted: int, kept: int, accepted: int, emitted: int) -> None:
        self.steps += 1
        self.emitted += emitted
        self.drafted += drafted
        self.kept += kept
        self.accepted += accepted
        if accepted > len(self.accepted_at):
            self.accepted_at = np.pad(self.accepted_at, (0, accepted - len(self.accepted_at)))
        self.accepted_at[:accepted] += 1

    def charge(self, cost: Cost, emitted: int) -> None:
        """The time of a pass in which it emitted so many tokens."""
        self.plain_ms += cost.plain_ms * emitted
        self.spent_ms += cost.spent_ms

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per decoding pass, the target's own included."""
        return self.emitted / self.steps if self.steps else 0.0

    def summary(self) -> dict[str, object]:
        return {
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "num_drafts": self.steps,
            "num_draft_tokens": self.drafted,
            "num_kept_tokens": self.kept,
            "num_accepted_tokens": self.accepted,
            "acceptance_per_position": [round(float(n) / self.steps, 4) for n in self.accepted_at],
            "gain": round(self.plain_ms / self.spent_ms, 4) if self.spent_ms else None,
        }


@dataclass(eq=False)
class Sequence:
    """tokens = prompt + output; the last one, the anchor, is not in the target's KV while decoding."""

    request_id: str
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    params: SamplingParams
    depth: int  # drafts per step; 0 = plain decoding
    drafter: str  # Triton model that its workload names; "" once it failed
    workload: Workload
    stream: bool
    echo: str  # text sent before the output
    text: TextStream
    reply: Reply
    deadline: float  # time.monotonic()

    thinking: bool = False
    undecided: bool = False  # the workload is a guess by key words
    slot: int = NO_SLOT
    opened: bool = False  # the target was asked what it holds of the prompt
    cached: int = 0  # committed rows in the target's KV
    shared_drafters: tuple[str, ...] = ()  # drafters that are asked beside it; they read no features
    seen: dict[str, int] = field(default_factory=dict)  # drafter -> rows of them that it has
    worth: dict[str, Worth] = field(default_factory=lambda: defaultdict(Worth))  # of each drafter, to it
    features: list[Array] = field(default_factory=list)  # [c, F] pieces of the rows that `drafter` has not seen
    log_probs: list[float] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    told_to_stop: bool = False
    sent: int = 0  # output tokens that the client has
    arrived: float = field(default_factory=time.monotonic)
    scheduled: float = 0.0  # when it got its slot
    first_token: float = 0.0  # when it had its first token of output
    perf_metrics: bool = False  # its client wants these times

    @property
    def prefilling(self) -> bool:
        return self.cached < self.prompt_length

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Output tokens it may still emit."""
        return self.max_tokens - self.output_length

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    @property
    def draft_limit(self) -> int:
        """Drafts worth verifying: one more token than accepted drafts is emitted."""
        return min(self.depth, self.remaining - 1) if self.drafters else 0

    @property
    def drafters(self) -> tuple[str, ...]:
        """Those that are asked, its own first."""
        return tuple(dict.fromkeys((self.drafter, *self.shared_drafters))) if self.drafter else self.shared_drafters

    @property
    def is_cancelled(self) -> bool:
        return self.told_to_stop or self.reply.is_cancelled()

    def is_over(self, now: float) -> bool:
        """Nobody waits for it any more, or its time is up."""
        return now > self.deadline or self.is_cancelled

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self.params.end_ids

    def unseen_tokens(self, drafter: str) -> list[int]:
        """The tokens that follow the rows which this drafter has not seen."""
        return self.tokens[self.seen.get(drafter, 0) + 1 : self.cached + 1]

    def unseen_features(self) -> Array:
        """[c, F] of the same rows, for the sequence's own drafter."""
        if len(self.features) > 1:
            self.features = [np.concatenate(self.features)]
        return self.features[0]

    def show(self, drafter: str) -> None:
        """Now this drafter has seen them."""
        self.seen[drafter] = self.cached
        if drafter == self.drafter:
            self.features = []

    def lose(self, drafter: str) -> None:
        """Go on without a drafter."""
        self.shared_drafters = tuple(name for name in self.shared_drafters if name != drafter)
        if self.drafter == drafter:
            self.drafter, self.features = "", []
