"""Batches of cases against a server, with a look at its health after each."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.fuzz import health
from tests.fuzz.case import Case
from tests.fuzz.health import Canary, Served
from tests.fuzz.judge import judge
from tests.fuzz.send import Sender
from tests.fuzz.shrink import shrink
from tests.fuzz.strategies import Limits, draw

VOCABULARY = 49152  # of the embedded model
AT_ONCE = 8
GOOD_EVERY = 12  # so many cases to one good request beside them
SPARE_THREADS = 8
KINDS = 3  # different symptoms after which a campaign ends

Restart = Callable[[], None]


@dataclass(frozen=True)
class Finding:
    """Harm. case: the smallest that does it; None where only the whole batch did. batch: its number for `draw`."""

    symptom: str
    case: Case | None
    batch: int


@dataclass
class Tally:
    """cells: how many cases had which verdict, by route."""

    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    good: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # Triton's own words, without their values

    @property
    def cases(self) -> int:
        return sum(self.cells.values())

    def kinds(self) -> set[str]:
        return {kind(finding.symptom) for finding in self.findings}


class Campaign:
    """restart: brings a dead server back; without it a campaign ends there."""

    def __init__(self, server: Served, restart: Restart | None = None) -> None:
        wanted = server.settings.coordinator
        self._server, self._slots, self._restart = server, wanted.max_sequences, restart
        self._limits = Limits(wanted.max_length, VOCABULARY, health.ready_models(server))
        self._ready()
        self.tally = Tally()

    def run(
        self, cases: int, number: int, batch: int = 100, until: float = float("inf"), told: Callable[[int], Any] = print
    ) -> Tally:
        """Batches number, number + 1, … until there were so many cases, or time.monotonic() is `until`, or KINDS of
        harm were found. told: called with the count of cases after each."""
        for batch_number in count(number):
            if self.tally.cases >= cases or time.monotonic() > until or len(self.tally.kinds()) >= KINDS:
                break
            drawn = draw(self._limits, min(batch, cases - self.tally.cases), batch_number)
            if not self._batch(drawn, batch_number):
                break
            told(self.tally.cases)
        self._sender.close()
        return self.tally

    def one(self, case: Case) -> str:
        """Send one case alone. Returns the harm that it does."""
        verdict, symptom = judge(case, self._sender.send(case))
        return symptom if verdict == "hurt" else self._harm()

    def _ready(self) -> None:
        """What the server is before the first case: warm, with as many connections as there will be."""
        self._sender = Sender(self._server)
        self._canary = Canary(self._sender, self._limits.models)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._sender.send, self._canary.cases * 4))
        time.sleep(2 * health.POLL_S)
        self._before = health.look(self._server)

    def _harm(self) -> str:
        """After all answers have come."""
        return health.settled(self._server, self._before, self._slots, SPARE_THREADS) or self._canary.check_all(
            self._sender
        )

    def _batch(self, cases: Sequence[Case], number: int) -> bool:
        """False where the server is gone for good."""
        lost: list[Case] = []

        def send(i: int) -> tuple[Case, str, str] | None:
            if len(lost) >= AT_ONCE:
                return None
            case = cases[i]
            outcome = self._sender.send(case)
            verdict, symptom = judge(case, outcome)
            if verdict == "hurt" and outcome.status == "lost":
                lost.append(case)
            if verdict == "refused by Triton":
                self.tally.refusals[kind(outcome.error)] += 1
            return case, verdict, symptom

        def good(i: int) -> str:
            return "" if lost else self._canary.check(self._sender, i % len(self._canary.cases))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            goods = []
            sent = []
            for i in range(len(cases)):
                sent.append(pool.submit(send, i))
                if i % GOOD_EVERY == 0:
                    goods.append(pool.submit(good, i // GOOD_EVERY + number))
            done = [result for future in sent if (result := future.result())]
            trouble = [result for future in goods if (result := future.result())]
        self.tally.good += len(goods)
        for case, verdict, _ in done:
            self.tally.cells[case.route, verdict] += 1
        harm = health.settled(self._server, self._before, self._slots, SPARE_THREADS)
        if not harm:
            harm = self._canary.check_all(self._sender) or next(iter(trouble), "")
        for case, verdict, symptom in done:
            if verdict == "hurt" and not lost and kind(symptom) not in self.tally.kinds():
                self.tally.findings.append(Finding(symptom, self._smallest(case, symptom), number))
        return not harm or self._find(lost or cases, harm, number)

    def _find(self, suspects: Sequence[Case], harm: str, number: int) -> bool:
        """Who of a batch did harm to the server, or to others."""
        if not self._restart:
            culprit = suspects[0] if len(suspects) == 1 else None
            self.tally.findings.append(Finding(f"{harm}; in flight: {_few(suspects)}", culprit, number))
            return False
        self._revive()
        for case in suspects:
            if symptom := self.one(case):
                self._revive()
                self.tally.findings.append(Finding(f"{harm}; alone: {symptom}", self._smallest(case, symptom), number))
                return True
        self.tally.findings.append(Finding(f"{harm}; none of {len(suspects)} does it alone", None, number))
        return True

    def _smallest(self, case: Case, symptom: str) -> Case:
        judged = judge(case, self._sender.send(case))[0] == "hurt"  # then its answers tell, and the server need not

        def hurts(candidate: Case) -> bool:
            if judged and not symptom.startswith("lost"):
                return alike(judge(candidate, self._sender.send(candidate))[1], symptom)
            harm = self.one(candidate)
            if harm and self._restart and health.harm(self._before, health.look(self._server), self._slots, 99):
                self._revive()
            return alike(harm, symptom)

        return shrink(case, hurts)

    def _revive(self) -> None:
        assert self._restart
        self._sender.close()
        self._restart()
        self._ready()


def alike(one: str, other: str) -> bool:
    """Whether both are the same harm; a lost connection and a lost process are."""
    death = ("lost", "processes")
    return kind(one) == kind(other) or (one.startswith(death) and other.startswith(death))


def kind(symptom: str) -> str:
    """A symptom without its values."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\[.*?\]|-?\d[\d.e+-]*", "…", symptom)[:70]


def _few(cases: Sequence[Case]) -> str:
    """What repeats itself is shortened."""
    return "; ".join(re.sub(r"(.{1,5}?)\1{19,}", r"\1…", case.to_json())[:600] for case in cases[:AT_ONCE])
