"""Which of the two, engines or a network, serves a drafter in the target's process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from python_backend.assembly.engines import has_engines
from python_backend.settings import DrafterSettings, Settings, TargetSettings


def settings_with(folder: Path, engine: str) -> Settings:
    drafter = DrafterSettings(kind="network", folder=folder, engine=engine, process="target")  # type: ignore[arg-type]
    return Settings(target=TargetSettings(engine="torch"), drafters={"d": drafter})


def test_engines_serve_where_they_are_built_and_the_network_elsewhere(tmp_path: Path) -> None:
    assert not has_engines("d", settings_with(tmp_path, "auto"))
    (tmp_path / "block.engine").touch()
    assert has_engines("d", settings_with(tmp_path, "auto"))


def test_the_setting_has_the_last_word(tmp_path: Path) -> None:
    assert has_engines("d", settings_with(tmp_path, "tensorrt"))
    (tmp_path / "block.engine").touch()
    assert not has_engines("d", settings_with(tmp_path, "torch"))


def test_engines_need_features_on_the_device() -> None:
    with pytest.raises(ValidationError, match="engine tensorrt needs process target, not own"):
        DrafterSettings(kind="network", engine="tensorrt")


@pytest.mark.parametrize("engine", ["openvino", "stock"])
def test_not_every_target_runs_drafters_beside_it(engine: str) -> None:
    drafters = {"d": DrafterSettings(kind="network", process="target")}
    with pytest.raises(ValidationError, match=rf"drafters\.d\.process is target, and target\.engine is {engine}"):
        Settings(target=TargetSettings(engine=engine), drafters=drafters)  # type: ignore[arg-type]


def test_old_settings_of_where_a_drafter_runs_are_answered_with_the_new_one() -> None:
    with pytest.raises(ValidationError, match=r"instead of True set drafters\.NAME\.process: target, at each network"):
        TargetSettings.model_validate({"hosts_drafters": True})
    with pytest.raises(ValidationError, match=r"set drafters\.NAME\.process: coordinator or own"):
        DrafterSettings.model_validate({"in_process": False})


def test_prompt_lookup_has_no_engines() -> None:
    with pytest.raises(ValidationError, match="engine tensorrt is for a network, not for prompt_lookup"):
        DrafterSettings(engine="tensorrt")
