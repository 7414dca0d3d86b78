"""A drafter in the coordinator's process answers, fails and is timed like one behind a call."""

import pytest
from pydantic import ValidationError

from python_backend.assembly.local import LocalDrafter, local_drafters
from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engine import EngineError
from python_backend.protocol import Context, DrafterStep
from python_backend.settings import DrafterSettings, Settings
from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode


def step(slot=0, past=0, tokens=(1, 2, 1)):
    return DrafterStep.of([Context(slot, past, tokens)], 2)


def test_it_drafts_what_the_drafter_drafts_and_says_how_long_that_took():
    local, plain = (PromptLookup("lookup", 2, 16, 4) for _ in range(2))
    drafted, expected = LocalDrafter(local).step(step()), plain.step(step())
    assert drafted.draft_ids.tolist() == expected.draft_ids.tolist() == [[2, 1]]
    assert drafted.engine_ms[0] > 0
    assert LocalDrafter(local).describe() == plain.describe()


def test_a_broken_contract_is_an_engines_error():
    with pytest.raises(EngineError, match="ProtocolError: tensor 'past_length' is 3 for slot 0"):
        LocalDrafter(PromptLookup("lookup", 2, 16, 4)).step(step(past=3))


def test_one_that_fails_slows_down_and_fails_nobody(tmp_path):
    drafter = ToyDrafter()
    drafter.step = lambda _: 1 / 0
    limits = {"budget": {"policy": "fixed"}, "coordinator": {"allow_control": False}}  # nothing that asks for profiling
    settings = settings_for(["toy"], cache_dir=tmp_path, **limits)
    service = start(settings, ToyTarget(), {"toy": LocalDrafter(drafter)})
    assert ask(service, input_ids=[1, 2, 3], max_tokens=10, end_id=-1).wait().ids == toy_decode([1, 2, 3], 10)
    service.shutdown()


def test_settings_say_which_drafters_are_local(tmp_path, monkeypatch):
    (tmp_path / "settings.yaml").write_text("{}")  # not the shipped file, which names drafters too
    monkeypatch.setenv("ANGELSPEC_SETTINGS", str(tmp_path / "settings.yaml"))
    drafters = {"here": DrafterSettings(process="coordinator"), "there": DrafterSettings()}
    settings = Settings(drafters=drafters, routes=dict.fromkeys(("chat", "code", "math"), "here"))
    assert list(local_drafters(settings)) == ["here"]


def test_a_network_stays_out_of_the_coordinators_process():
    with pytest.raises(ValidationError, match="process coordinator is for prompt_lookup, not for a network"):
        DrafterSettings(kind="network", process="coordinator")
