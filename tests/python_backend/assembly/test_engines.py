"""Which of the two, engines or a network, serves a drafter in the target's process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from python_backend.assembly.engines import has_engines
from python_backend.settings import DrafterSettings, Settings, TargetSettings

HOSTING = TargetSettings(hosts_drafters=True)


def settings_with(folder: Path, engine: str) -> Settings:
    drafter = DrafterSettings(kind="network", folder=folder, engine=engine)  # type: ignore[arg-type]
    return Settings(target=HOSTING, drafters={"d": drafter})


def test_engines_serve_where_they_are_built_and_the_network_elsewhere(tmp_path: Path) -> None:
    assert not has_engines("d", settings_with(tmp_path, "auto"))
    (tmp_path / "block.engine").touch()
    assert has_engines("d", settings_with(tmp_path, "auto"))


def test_the_setting_has_the_last_word(tmp_path: Path) -> None:
    assert has_engines("d", settings_with(tmp_path, "tensorrt"))
    (tmp_path / "block.engine").touch()
    assert not has_engines("d", settings_with(tmp_path, "torch"))


def test_engines_need_features_on_the_device() -> None:
    with pytest.raises(ValidationError, match=r"drafters\.d\.engine is tensorrt: .* set target\.hosts_drafters true"):
        Settings(drafters={"d": DrafterSettings(kind="network", engine="tensorrt")})


def test_prompt_lookup_has_no_engines() -> None:
    with pytest.raises(ValidationError, match="engine tensorrt is for a network, not for prompt_lookup"):
        DrafterSettings(engine="tensorrt")
