"""A server whose parts do not fit does not come up, and says which."""

import dataclasses

import pytest

from python_backend.coordinator.handshake import StartupError, feature_columns
from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 5}, "vocabulary of 5 tokens, the target 96"),
        ({"feature_size": 7}, "needs features of size 7, the target gives 0"),
        ({"feature_layers": (1, 4), "feature_size": 6}, r"reads layer 1, the target captures \(\)"),
        ({"target_sha256": "another"}, "was trained for the target another"),
        ({"slots": 3}, "has 3 slots, coordinator.max_sequences is 8"),
        ({"max_length": 100}, "holds 100 tokens a slot"),
        ({"role": "target"}, "not a drafter"),
    ],
)
def test_a_drafter_that_does_not_fit_is_named(tmp_path, change, message):
    drafter = ToyDrafter()
    description = dataclasses.replace(drafter.describe(), **change)
    drafter.describe = lambda: description
    with pytest.raises(StartupError, match=message):
        start(settings_for(["drafter_toy"], cache_dir=tmp_path), ToyTarget(), {"drafter_toy": drafter})


def test_a_drafter_reads_its_own_layers_in_its_own_order():
    target = dataclasses.replace(ToyTarget().describe(), feature_layers=(8, 20, 30), feature_size=6)
    drafter = dataclasses.replace(ToyDrafter().describe(), feature_layers=(30, 8), feature_size=4)
    assert feature_columns(target, drafter).tolist() == [4, 5, 0, 1]
    assert feature_columns(target, ToyDrafter().describe()).tolist() == []


def test_requests_to_a_server_that_did_not_come_up_get_the_reason(tmp_path):
    from python_backend.coordinator.metrics import Metrics
    from python_backend.coordinator.service import Service
    from tests.support.host import Letters

    settings = settings_for(["drafter_toy"], cache_dir=tmp_path)
    service = Service(settings, ToyTarget(slots=2), {"drafter_toy": ToyDrafter()}, Letters(), Metrics())
    service.start()
    with pytest.raises(StartupError):
        service.wait_started(60)
    answer = ask(service, input_ids=[1], max_tokens=3).wait()
    assert answer.error.code == "UNAVAILABLE"
    assert "the target has 2 slots" in str(answer.error)
