"""A pass that fails costs the request that makes it fail, and nobody else."""

from __future__ import annotations

import math

import pytest

from python_backend.engine import EngineError, EngineLostError
from tests.support.host import ask, settings_for, start, wait_until
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode

SLOTS = 8
COUNT = 12


class Fragile(ToyTarget):
    """Fails a pass while `broken` says so of its slots' prompts. Counts passes."""

    def __init__(self):
        super().__init__(slots=SLOTS)
        self.culprits, self.failures, self.error = set(), 0, EngineError("cannot do that")
        self.budget = math.inf  # failures until it works again
        self.batches = []

    def step(self, step):
        first = {
            int(self.history.tokens[s, 0]) if p else None for s, p in zip(step.slot, step.past_length, strict=True)
        }
        first |= set(step.token_ids[step.past_length.repeat(step.row_count) == 0].tolist())
        self.batches.append(len(step.slot))
        several = "several" in self.culprits and len(step.slot) > 1
        if (first & self.culprits or "all" in self.culprits or several) and self.failures < self.budget:
            self.failures += 1
            raise self.error
        return super().step(step)


@pytest.fixture
def parts(tmp_path):
    target, drafter = Fragile(), ToyDrafter()
    service = start(
        settings_for(["drafter_toy"], cache_dir=tmp_path, budget={"policy": "fixed"}), target, {"drafter_toy": drafter}
    )
    yield service, target, drafter
    service.shutdown()


def prompt_of(i):
    return [50 + i, 3, 4]


def run_all(service, count=SLOTS):
    """They decode together before the target is asked for anything."""
    return [ask(service, input_ids=prompt_of(i), max_tokens=COUNT, end_id=-1) for i in range(count)]


def is_right(answer, i):
    return answer.wait().error is None and answer.ids == toy_decode(prompt_of(i), COUNT)


def is_idle(service):
    return service._scheduler.free_slots == SLOTS and len(service._replies) == 0


@pytest.mark.parametrize("culprits", [{50}, {57}, {53}, {50, 57}, {51, 52, 53}])
def test_only_the_culprits_of_a_failing_pass_fail(parts, culprits):
    service, target, _ = parts
    target.culprits = culprits
    answers = run_all(service)
    for i, answer in enumerate(answers):
        if 50 + i in culprits:
            assert "cannot do that" in str(answer.wait().error)
        else:
            assert is_right(answer, i), i
    wait_until(lambda: is_idle(service))


def test_a_culprit_is_found_in_log2_b_passes(parts):
    service, target, _ = parts
    target.culprits = {53}
    for answer in run_all(service):
        answer.wait()
    assert target.failures <= 2 * (1 + math.log2(SLOTS))  # it may have been alone or few at first
    assert max(target.batches) > 1


def test_a_pass_that_fails_once_fails_nobody(parts):
    service, target, _ = parts
    target.culprits, target.budget = {"several"}, 1
    assert all(is_right(answer, i) for i, answer in enumerate(run_all(service)))
    assert target.failures == 1
    wait_until(lambda: is_idle(service))


def test_a_target_that_fails_for_everybody_fails_all_soon(parts):
    service, target, _ = parts
    target.culprits = {"all"}
    for answer in run_all(service):
        assert "cannot do that" in str(answer.wait().error)
    assert target.failures <= 5 * SLOTS
    wait_until(lambda: is_idle(service))
    target.culprits = set()
    assert is_right(ask(service, input_ids=prompt_of(1), max_tokens=COUNT, end_id=-1), 1)


def test_a_lost_target_is_not_asked_again_for_what_it_held(parts):
    service, target, _ = parts
    target.culprits, target.budget, target.error = {53}, 1, EngineLostError("the process died; it was replaced")
    answers = run_all(service)
    assert "it was replaced" in str(answers[3].wait().error)
    for answer in answers:
        answer.wait()
    assert target.failures == 1
    wait_until(lambda: is_idle(service))


@pytest.mark.parametrize("error", [ValueError("no engine error"), EngineError("cannot draft that")])
def test_a_sequence_that_breaks_draft_calls_takes_the_drafter_from_nobody(parts, error):
    service, _, drafter = parts
    step, asked = drafter.step, set()

    def fragile(message):
        if 50 in message.token_ids.tolist() or any(drafter.tokens[s][:1] == [50] for s in message.slot):
            raise error
        drafted = step(message)
        asked.update(drafter.tokens[s][0] for s in message.slot)
        return drafted

    drafter.step = fragile
    prompts = [[60, 50 if i == 2 else 70 + i, 4] for i in range(4)]
    answers = [ask(service, input_ids=prompt, max_tokens=COUNT, end_id=-1) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.wait().ids == toy_decode(prompt, COUNT)
    assert asked == {70, 71, 73}


def test_an_answer_that_cannot_be_extended_fails_alone(parts, monkeypatch):
    service, *_ = parts
    from python_backend.coordinator import loop

    append = loop.append

    def fragile(sequence, tokens):
        if sequence.tokens[0] == 52:
            raise LookupError("no text for that")
        return append(sequence, tokens)

    monkeypatch.setattr(loop, "append", fragile)
    answers = run_all(service)
    assert "no text for that" in str(answers[2].wait().error)
    assert all(is_right(answer, i) for i, answer in enumerate(answers) if i != 2)
    wait_until(lambda: is_idle(service))
