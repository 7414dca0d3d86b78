"""Settings that were renamed are answered with the name that they have now."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from python_backend.settings import RENAMED, Settings


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_answered_with_the_new_one(old, new):
    value: object = "value"
    for key in reversed(old.split(".")):
        value = {key: value}
    with pytest.raises(ValidationError, match=f"{old} is called {new} now: set that to value"):
        Settings(**value)


@pytest.mark.parametrize("name", RENAMED.values())
def test_the_new_name_exists(name):
    section = Settings
    for key in name.split("."):
        field = section.model_fields[key].annotation if key != "NAME" else section
        section = getattr(field, "__args__", (None, field))[1] if key == "drafters" else field
