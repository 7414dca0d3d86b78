"""The gain of speculation is right for passes whose costs are known, and a loss is said once in a while."""

from __future__ import annotations

import json
import logging

import pytest

from python_backend.budget.cost_table import CostTable
from python_backend.budget.costs import StepCosts
from python_backend.coordinator.cost import NOTHING
from python_backend.coordinator.gain import WINDOW_MS, Gain
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.report import StepReport
from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget

TABLE = CostTable(4, 128, (1, 2), (0.0, 1.0), ((10.0, 20.0), (12.0, 28.0)), {"d": (5.0, 6.0)})


class Sink:
    def __init__(self):
        self.gauges = {}

    def increment(self, name, value): ...

    def observe(self, name, value): ...

    def set(self, name, value):
        self.gauges[name] = value


@pytest.fixture
def metrics():
    return Metrics()


def told(metrics):
    sink = Sink()
    metrics.publish(sink)
    return sink.gauges.get("angelspec_speculation_gain")


def drafted(verify_ms=20.0, draft_ms=5.0, rows=5):
    return StepReport(batch=1, rows=rows, asked=1, draft_ms=draft_ms, verify_ms=verify_ms)


def test_a_pass_that_emits_as_much_as_it_costs_is_worth_it_and_no_more(metrics):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    cost = gain.cost(drafted())
    assert (cost.plain_ms, cost.spent_ms) == (10.0, 25.0)
    gain.add(cost, tokens=5, batch=1)
    assert told(metrics) == pytest.approx(2.0)
    for _ in range(3):
        gain.add(cost, tokens=0, batch=1)
    assert told(metrics) == pytest.approx(0.5)


def test_a_slow_hour_is_no_loss_of_speculation(metrics):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    slow = gain.cost(drafted(verify_ms=60.0, draft_ms=15.0))
    assert slow.plain_ms / slow.spent_ms == pytest.approx(10 / 25)


def test_plain_passes_gain_nothing_and_lose_nothing(metrics):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    gain.add(gain.cost(StepReport(batch=2, rows=2, verify_ms=99.0)), tokens=2, batch=2)
    assert told(metrics) == 1.0


def test_drafts_that_were_asked_for_and_dropped_are_paid_for(metrics):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    gain.add(gain.cost(drafted(verify_ms=10.0, rows=1)), tokens=1, batch=1)
    assert told(metrics) == pytest.approx(10 / 15)


def test_without_a_table_nothing_is_said(metrics):
    gain = Gain(None, metrics)
    assert gain.cost(drafted()) == NOTHING
    gain.add(NOTHING, tokens=1, batch=1)
    gain.add(gain.cost(StepReport(batch=2, rows=2, verify_ms=99.0)), tokens=2, batch=2)
    assert told(metrics) is None


def test_a_loss_is_logged_once_and_not_from_a_few_passes(metrics, caplog):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    passes = int(WINDOW_MS / 25)
    with caplog.at_level(logging.WARNING):
        for _ in range(passes // 3):
            gain.add(gain.cost(drafted()), tokens=1, batch=1)
        assert caplog.messages == []
        for _ in range(4 * passes):
            gain.add(gain.cost(drafted()), tokens=1, batch=1)
    (message,) = caplog.messages
    assert "the last 30 s of decoding would have taken 12 s without drafts" in message


def test_the_gain_forgets_what_was_minutes_ago(metrics):
    gain = Gain(StepCosts(TABLE, learns=False), metrics)
    for tokens in (1, 5):
        for _ in range(20 * int(WINDOW_MS / 25)):
            gain.add(gain.cost(drafted()), tokens=tokens, batch=1)
    assert told(metrics) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("policy", "known"), [("dcut", True), ("off", False), ("fixed", False)])
def test_the_last_answer_and_the_endpoint_have_the_gain_where_costs_are_known(tmp_path, policy, known):
    sections = {"budget": {"policy": policy}, "coordinator": {"allow_control": False}}
    wanted = settings_for(["drafter_toy"], cache_dir=tmp_path, **sections)
    service = start(wanted, ToyTarget(), {"drafter_toy": ToyDrafter()})
    try:
        answer = ask(service, input_ids=[10, 20, 30], max_tokens=30, end_id=-1).wait()
    finally:
        service.shutdown()
    gain = json.loads(answer.chunks[-1]["speculation"][0])["gain"]
    assert (gain is not None and gain > 0) == known
    assert (told(service.metrics) is not None) == known
