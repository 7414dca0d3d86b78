"""Which drafter a Triton model serves."""

from __future__ import annotations

import pytest

from python_backend.assembly.drafters import build_drafter
from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engine import EngineError
from python_backend.settings import DrafterSettings, Settings


def test_the_settings_say_what_a_model_serves():
    assert isinstance(build_drafter("a", Settings(drafters={"a": DrafterSettings()})), PromptLookup)


def test_a_kind_that_is_unknown_is_named():
    with pytest.raises(ValueError, match=r"drafters\.a\.kind is 'oracle': expected one of"):
        build_drafter("a", Settings(drafters={"a": DrafterSettings(kind="oracle")}))


def test_a_model_that_the_settings_do_not_name_loads_and_says_so_when_it_is_asked():
    with pytest.raises(EngineError, match=r"settings\.drafters has no 'b'; it has"):
        build_drafter("b", Settings(drafters={"a": DrafterSettings()})).describe()
