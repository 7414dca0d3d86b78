"""Where several drafters have drafts for a sequence, it takes those of which most are expected to be accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from python_backend.budget import draft_payoff
from python_backend.budget.cost_table import CostTable
from python_backend.budget.costs import StepCosts
from python_backend.budget.draft_payoff import Prices
from python_backend.coordinator.draft_calls import DraftCalls
from python_backend.coordinator.handshake import StartupError
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.reply import Reply
from python_backend.coordinator.report import StepReport
from python_backend.coordinator.sequence import Sequence
from python_backend.coordinator.stream import TextStream
from python_backend.engine import EngineError
from python_backend.protocol import DrafterResult
from python_backend.sampling.params import SamplingParams
from tests.support.host import Answer, Letters, ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode


class Says:
    """Drafts and confidences as given, for any sequence."""

    def __init__(self, ids, confidence):
        self.ids, self.confidence, self.calls, self.released = ids, confidence, [], []

    def describe(self):
        return ToyDrafter().describe()

    def step(self, step):
        if self.ids is None:
            raise EngineError("broken")
        self.calls.append(step)
        batch, depth = len(step.slot), int(step.depth[0])
        return DrafterResult(
            draft_ids=np.array([self.ids[:depth]] * batch, dtype=np.int32),
            confidence=np.array([self.confidence[:depth]] * batch, dtype=np.float32),
        )

    def release(self, slot):
        self.released += slot.tolist()


def sequence(slot=0, drafter="own", shared_drafters=("lookup",)):
    return Sequence(
        request_id="",
        tokens=[5, 6, 7, 8],
        prompt_length=2,
        max_tokens=50,
        params=SamplingParams(),
        depth=3,
        drafter=drafter,
        workload="chat",
        stream=False,
        echo="",
        text=TextStream(Letters().decode, []),
        reply=Reply(Answer()),
        deadline=0.0,
        shared_drafters=shared_drafters,
        slot=slot,
        cached=3,
    )


def calls(own, lookup):
    drafters = {"own": own, "lookup": lookup}
    described = {name: drafter.describe() for name, drafter in drafters.items()}
    return DraftCalls(drafters, described, ToyTarget().describe(), None, Metrics())


OWN = ([1, 2, 3], [0.9, 0.5, 0.1])  # 0.9 + 0.45 + 0.045 expected


@pytest.mark.parametrize(
    ("lookup", "limit", "taken"),
    [
        (([7, 8, 9], [0.8, 0.8, 0.8]), 3, [7, 8, 9]),
        (([7, 8, 9], [0.8, 0.8, 0.8]), 1, [1, 2, 3]),  # one draft is of use: the surer one
        (([7, -1, -1], [0.99, 0.0, 0.0]), 3, [1, 2, 3]),
        (([-1, -1, -1], [0.0, 0.0, 0.0]), 3, [1, 2, 3]),
        (OWN, 3, [1, 2, 3]),  # a tie
    ],
)
def test_the_longer_expected_draft_wins(lookup, limit, taken):
    drafted = calls(Says(*OWN), Says(*lookup)).run([sequence()], np.array([limit]), Prices(), StepReport(batch=1))
    assert drafted.ids[0].tolist() == taken[: drafted.ids.shape[1]]
    assert drafted.available[0] == limit


def test_each_drafter_gets_its_own_context_once():
    own, lookup = Says(*OWN), Says(*OWN)
    both, alone = sequence(0), sequence(1, shared_drafters=())
    room = calls(own, lookup)
    room.run([both, alone], np.array([3, 3]), Prices(), StepReport(batch=2))
    both.tokens += [9, 10]
    both.cached += 2
    room.run([both], np.array([3]), Prices(), StepReport(batch=1))
    assert [step.slot.tolist() for step in own.calls] == [[0, 1], [0]]
    assert [step.slot.tolist() for step in lookup.calls] == [[0], [0]]
    for step in (own.calls[1], lookup.calls[1]):
        assert (step.past_length.tolist(), step.token_ids.tolist()) == ([3], [9, 10])
    room.release([both, alone])
    assert (own.released, lookup.released) == ([0, 1], [0])


def test_a_drafter_that_fails_leaves_the_other_one():
    broken, lookup = Says(None, None), Says([7, 8, 9], [0.8, 0.8, 0.8])
    one = sequence()
    room = calls(broken, lookup)
    assert room.run([one], np.array([3]), Prices(), StepReport(batch=1)).ids[0].tolist() == [7, 8, 9]
    assert one.drafters == ("lookup",)
    lookup.ids = None
    room.run([one], np.array([3]), Prices(), StepReport(batch=1))
    assert one.drafters == ()
    assert one.draft_limit == 0


def test_a_second_drafter_that_reads_features_is_refused(tmp_path):
    drafters = {"own": ToyDrafter(), "other": ToyDrafter(feature_size=2)}
    settings = settings_for(["own"], shared_drafters=("other",), cache_dir=tmp_path)
    with pytest.raises(StartupError, match="shared_drafters names 'other', which reads features"):
        start(settings, ToyTarget(feature_size=2), drafters)


def test_with_two_drafters_fewer_steps_are_needed(tmp_path):
    steps = {}
    for also in ((), ("good",)):
        drafters = {"poor": ToyDrafter(right=0.0), "good": ToyDrafter(right=1.0)}
        drafters["poor"].step = low(drafters["poor"].step)
        settings = settings_for(
            ["poor"], shared_drafters=also, cache_dir=tmp_path / str(also), budget={"policy": "fixed"}
        )
        service = start(settings, ToyTarget(), drafters)
        answer = ask(service, input_ids=[3, 4, 5], max_tokens=40, end_id=-1).wait()
        assert answer.ids == toy_decode([3, 4, 5], 40)
        steps[also] = int(answer.chunks[-1]["total_draft_tokens"][0]) - int(
            answer.chunks[-1]["total_accepted_draft_tokens"][0]
        )
        service.shutdown()
    assert steps[("good",)] < steps[()] / 4


def low(step):
    def unsure(message):
        result = step(message)
        result.confidence[:] = 0.1
        return result

    return unsure


class Timeless(StepCosts):
    """The doubles take no time, which is not to be learned."""

    def saw_draft(self, drafter, batch, depth, ms):
        pass


class TestAsking:
    """Two drafters with prices: a network that costs half a token a call, and a lookup that is free."""

    TABLE = CostTable(
        depth=3,
        context_length=8,
        batch_sizes=(1, 8),
        fractions=(0.0, 1.0),
        verify=((20.0, 32.0), (40.0, 88.0)),
        draft={"own": (10.0, 10.0), "lookup": (0.01, 0.01)},
    )
    NOTHING = ([-1, -1, -1], [0.0, 0.0, 0.0])

    def room(self, own, lookup):
        room = calls(own, lookup)
        room.costs = Timeless(self.TABLE)
        return room

    def steps(self, room, sequences, count, max_skipped_steps=16):
        limit = np.full(len(sequences), 3)
        prices = draft_payoff.prices(StepCosts(self.TABLE), len(sequences), max_skipped_steps)
        return [room.run(sequences, limit, prices, StepReport(batch=len(sequences))) for _ in range(count)]

    def test_a_drafter_that_never_pays_is_asked_ever_more_rarely(self):
        own, lookup = Says([1, 2, 3], [0.3, 0.1, 0.1]), Says(*self.NOTHING)
        self.steps(self.room(own, lookup), [sequence()], 160)
        assert 10 <= len(own.calls) <= 20
        assert len(lookup.calls) == 160

    def test_one_that_pays_is_always_asked(self):
        own, lookup = Says([1, 2, 3], [0.9, 0.9, 0.9]), Says(*self.NOTHING)
        self.steps(self.room(own, lookup), [sequence()], 30)
        assert len(own.calls) == 30

    def test_it_is_not_asked_where_a_free_draft_is_as_good(self):
        own, lookup = Says([1, 2, 3], [0.9, 0.9, 0.9]), Says([7, 8, 9], [0.9, 0.9, 0.9])
        room, one = self.room(own, lookup), sequence()
        drafted = self.steps(room, [one], 30)
        assert len(own.calls) == 1  # until then nobody knew
        assert drafted[-1].ids[0].tolist() == [7, 8, 9]
        lookup.ids, lookup.confidence = self.NOTHING
        assert self.steps(room, [one], 1)[0].ids[0].tolist() == [1, 2, 3]

    def test_a_dear_one_is_tried_once_all_the_same(self):
        own, lookup = Says([1, 2, 3], [0.1, 0.1, 0.1]), Says(*self.NOTHING)
        room = self.room(own, lookup)
        room.costs._pace["own"] = 10.0  # five tokens a call
        self.steps(room, [sequence()], 64)
        assert 4 <= len(own.calls) <= 9

    def test_sequences_share_a_call_that_would_pay_for_none_alone(self):
        own, lookup = Says([1, 2, 3], [0.68, 0.1, 0.1]), Says(*self.NOTHING)
        alone, together = [sequence()], [sequence(slot) for slot in range(8)]
        room = self.room(own, lookup)
        self.steps(room, alone, 40)
        assert len(own.calls) < 20
        own.calls.clear()
        self.steps(room, together, 40)
        assert [len(step.slot) for step in own.calls] == [8] * 40

    def test_without_pauses_it_is_asked_in_every_step(self):
        own, lookup = Says([1, 2, 3], [0.1, 0.1, 0.1]), Says(*self.NOTHING)
        room = self.room(own, lookup)
        for _ in range(30):
            room.run([sequence()], np.array([3]), Prices(), StepReport(batch=1))
        assert len(own.calls) == 30

    def test_what_calls_really_take_is_learned(self):
        own, lookup = Says([1, 2, 3], [0.4, 0.1, 0.1]), Says(*self.NOTHING)
        room = self.room(own, lookup)
        room.costs = StepCosts(self.TABLE)
        self.steps(room, [sequence()], 60)
        assert room.predict_ms("own", 1, 3) < 5.0

    def test_a_drafter_is_asked_as_deep_as_its_drafts_are_good(self):
        for confidence, depth in (([0.95, 0.95, 0.95], 3), ([0.8, 0.05, 0.05], 1)):
            own, lookup = Says([1, 2, 3], confidence), Says(*self.NOTHING)
            room = self.room(own, lookup)
            room.costs = Timeless(replace(self.TABLE, first_draft={"own": (4.0, 4.0), "lookup": (0.01, 0.01)}))
            drafted = self.steps(room, [sequence()], 40)[-1]
            assert int(own.calls[-1].depth[0]) == depth
            assert drafted.available[0] == depth
