"""Runs every pass of every run that is not known yet, and compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from build_scripts.exactness.combinations import ALL, Arithmetic, Run
from build_scripts.exactness.questions import Question
from build_scripts.exactness.results import Mismatch, Results, Tally, Tokens
from build_scripts.exactness.running import Answered, Pass, Subject, answer, loaded, serving

ALONE = Pass("alone", streams=1)
PASSES = (  # of 64 questions with 64 tokens each: 22,016 tokens
    Pass("16 at once", streams=16, every=4),
    Pass("32 at once", streams=32, seed=1),
    Pass("alone", streams=1, every=8, seed=2),
    Pass("16, staggered", streams=16, gap_s=0.1, seed=3),
    Pass("32, staggered", streams=32, gap_s=0.05, seed=4),
    Pass("32 at once, again", streams=32, seed=5),
    Pass("32, staggered, again", streams=32, gap_s=0.02, seed=6),
)

Gap = Callable[[Question, Tokens, int, int], float]  # question, tokens before, two tokens


class Told(NamedTuple):
    """Called as things go on."""

    begin: Callable[[str, int], Any]  # what is being done, and answers to come
    tick: Callable[[], Any]  # an answer came
    end: Callable[[], Any]  # a pass is done
    stop: Callable[[], bool]  # whether to leave the rest for another time


def fill(subject: Subject, runs: Iterable[Run], passes: Iterable[Pass], results: Results, gap: Gap, told: Told) -> bool:
    """Compute what is missing: a pass of all runs before the next pass. Returns whether all is there."""
    wanted = list(runs)
    for how in passes:
        for arithmetic, todo in by_arithmetic(r for r in wanted if not results.has(r, how.name)):
            known = results.reference(arithmetic)
            unknown = [n for n in how.numbers(len(subject.questions)) if n not in known]
            if unknown and not told.stop():
                results.add_reference(arithmetic, known | references(subject, arithmetic, unknown, told))
            if told.stop() or not _fill(subject, arithmetic, todo, how, results, gap, told):
                return False
    return True


def references(subject: Subject, arithmetic: Arithmetic, numbers: list[int], told: Told) -> dict[int, Tokens]:
    """Plain decoding of each of these questions alone, by an engine that shares no prompt's rows."""
    run = Run(arithmetic, "off", ALL)
    told.begin(f"{arithmetic}: plain, alone", len(numbers))
    with loaded(subject, arithmetic, prefix_cache=0) as target, serving(subject, run, target) as service:
        return answer(service, run, subject.questions, ALONE, told.tick, numbers).tokens


def by_arithmetic(runs: Iterable[Run]) -> Iterator[tuple[Arithmetic, list[Run]]]:
    groups: dict[Arithmetic, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.arithmetic, []).append(run)
    yield from groups.items()


def compare(questions: list[Question], expected: dict[int, Tokens], answered: Answered, gap: Gap) -> Tally:
    """Token for token, up to the first that differs in each answer."""
    tally = Tally(drafted=answered.drafted, accepted=answered.accepted)
    for number, found in answered.tokens.items():
        want = expected[number]
        if len(found) != len(want):
            raise ValueError(f"question {number} was answered with {len(found)} tokens, alone with {len(want)}")
        at = next((t for t, (a, b) in enumerate(zip(want, found, strict=True)) if a != b), None)
        tally.compared += len(want) if at is None else at + 1
        if at is not None:
            distance = gap(questions[number], want[:at], want[at], found[at])
            tally.mismatches.append(Mismatch(number, at, want[at], found[at], distance))
    return tally


def _fill(
    subject: Subject, arithmetic: Arithmetic, todo: list[Run], how: Pass, results: Results, gap: Gap, told: Told
) -> bool:
    """One pass of these runs, over one target. Returns whether it was not stopped."""
    expected = results.reference(arithmetic)
    with loaded(subject, arithmetic) as target:
        for run in todo:
            if told.stop():
                return False
            told.begin(f"{run}: {how.name}", len(how.numbers(len(subject.questions))))
            with serving(subject, run, target) as service:
                answered = answer(service, run, subject.questions, how, told.tick)
            results.add(run, how.name, compare(subject.questions, expected, answered, gap))
            told.end()
    return True
