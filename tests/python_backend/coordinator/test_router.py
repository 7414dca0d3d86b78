"""Key words decide until the target has read the prompt; then the classifier does, where it fits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from python_backend.coordinator.router import PromptClassifier, Router, pool, route
from python_backend.settings import CoordinatorSettings, Settings
from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget

ROUTES = {"chat": "a", "code": "b", "math": "c"}


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("Tell me about owls.", "chat"),
        ("Write a Python function that reverses a list.", "code"),
        ("What is 12 * 7?", "math"),
        ("```\nx = 1\n```\nWhat does this print?", "code"),
        ("A train travels 60 miles. How far is it after 3 hours?", "math"),
    ],
)
def test_key_words(text, workload):
    assert route(text) == workload


@pytest.fixture
def weights(tmp_path):
    """Reads layer 20; the largest of its three columns says chat, code or math."""
    file = tmp_path / "router.safetensors"
    PromptClassifier("toy", 20, np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32)).save(file)
    return file


def router(weights, **changes):
    about = dataclasses.replace(ToyTarget().describe(), feature_layers=(8, 20), feature_size=6)
    settings = Settings(
        coordinator=CoordinatorSettings(router=weights), routes=ROUTES, thinking_routes={"math": "thinker"}
    )
    return Router(settings, dataclasses.replace(about, **changes))


def sequence(*rows, **changes):
    features = [np.array(rows, dtype=np.float32)] if rows else []
    start = {"workload": "chat", "drafter": "a", "undecided": True, "thinking": False, "features": features}
    return SimpleNamespace(**(start | changes))


def test_the_classifier_reads_its_layer_and_leaves_out_the_first_row(weights):
    read = sequence([0, 0, 0, 9, 0, 0], [7, 7, 7, 0, 0, 1], [0, 0, 9, 0, 1, 2])
    router(weights).settle(read)
    assert (read.workload, read.drafter, read.undecided) == ("math", "c", False)


def test_thinking_has_routes_of_its_own(weights):
    read = sequence([0, 0, 0, 0, 0, 1], thinking=True)
    router(weights).settle(read)
    assert read.drafter == "thinker"


def test_what_the_client_says_or_has_lost_its_drafter_stays(weights):
    said = sequence([0, 0, 0, 0, 0, 1], undecided=False)
    lost = sequence([0, 0, 0, 0, 0, 1], drafter="")
    for read in (said, lost):
        before = (read.workload, read.drafter)
        router(weights).settle(read)
        assert (read.workload, read.drafter) == before


@pytest.mark.parametrize("changes", [{"weights_sha256": "another"}, {"feature_layers": (8, 27)}])
def test_a_classifier_that_does_not_fit_the_target_is_not_used(weights, changes):
    read = sequence([0, 0, 0, 0, 0, 1])
    router(weights, **changes).settle(read)
    assert read.workload == "chat"


def test_pooling_is_the_mean_over_all_rows_but_the_first():
    assert pool(np.array([[9.0], [1.0], [3.0]])).tolist() == [2.0]
    assert pool(np.array([[9.0]])).tolist() == [9.0]


def test_a_request_is_drafted_for_by_the_drafter_of_what_the_target_read(tmp_path):
    """The toy's features are the position plus one in every column: the bias decides, for code."""
    file = tmp_path / "router.safetensors"
    bias = np.array([0, 1, 0], dtype=np.float32)
    PromptClassifier("toy", 0, np.zeros((3, 2), dtype=np.float32), bias).save(file)
    drafters = {name: ToyDrafter(feature_size=2) for name in ("for_chat", "for_code", "for_math")}
    settings = settings_for(list(drafters), cache_dir=tmp_path, coordinator={"router": file})
    service = start(settings, ToyTarget(feature_size=2), drafters)
    used = {name: [] for name in drafters}
    for name, drafter in drafters.items():
        drafter.step = lambda step, name=name, run=drafter.step: used[name].append(step) or run(step)
    ask(service, input_ids=[3, 4, 5], max_tokens=20, end_id=-1).wait()
    ask(service, input_ids=[3, 4, 5], max_tokens=20, end_id=-1, workload="math").wait()
    service.shutdown()
    assert not used["for_chat"]
    assert used["for_code"]
    assert used["for_math"]
