"""No slot is lost or given twice, whatever comes and goes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from python_backend.coordinator.reply import Reply
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.scheduler import Scheduler
from python_backend.coordinator.sequence import Sequence
from python_backend.coordinator.stream import TextStream
from python_backend.sampling.params import SamplingParams
from tests.support.host import Answer

SLOTS, QUEUE, ROWS = 4, 5, 10


def sequence(prompt_length):
    return Sequence(
        request_id="",
        tokens=[1] * prompt_length,
        prompt_length=prompt_length,
        max_tokens=10,
        params=SamplingParams(),
        depth=2,
        drafter="d",
        workload="chat",
        stream=False,
        echo="",
        text=TextStream(lambda ids: ""),
        reply=Reply(Answer()),
        deadline=1e18,
    )


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.scheduler = Scheduler(SLOTS, QUEUE, ROWS)
        self.known = []

    @rule(length=st.integers(1, 30))
    def submit(self, length):
        arrival = sequence(length)
        waiting = self.scheduler.waiting - self.scheduler.free_slots
        if waiting >= QUEUE:
            with pytest.raises(RequestError, match="queue is full"):
                self.scheduler.submit(arrival)
        else:
            self.scheduler.submit(arrival)
            self.known.append(arrival)

    @rule()
    def step(self):
        self.scheduler.admit()
        batch = self.scheduler.schedule()
        assert sum(chunk.rows for chunk in batch.chunks) <= ROWS
        assert all(chunk.rows > 0 for chunk in batch.chunks)
        assert not any(s.prefilling for s in batch.decoding)
        prefilling = [s for s in self.scheduler.running if s.prefilling]
        assert bool(batch.chunks) == bool(prefilling)
        for chunk in batch.chunks:
            chunk.sequence.cached += chunk.rows

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def finish(self, data):
        gone = data.draw(st.sampled_from(self.known))
        self.known.remove(gone)
        self.scheduler.finish(gone)

    @invariant()
    def slots_are_conserved(self):
        used = [s.slot for s in self.scheduler.running]
        assert len(set(used)) == len(used)
        assert sorted(used + self.scheduler._free) == list(range(SLOTS))
        assert len(self.known) == len(self.scheduler.running) + self.scheduler.waiting


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
