"""What `make engines` writes for a server is accepted by the settings tree, and by the limits of the engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer import Typer
from typer.testing import CliRunner

from python_backend.settings import Settings, load
from trtllm_engines import recipe as recipes
from trtllm_engines import serve_settings
from trtllm_engines.commands import Folders
from trtllm_engines.recipe import RecipeError
from trtllm_engines.serve_settings import settings_of

BUILDABLE = [name for name in recipes.names() if not recipes.load(name).missing]


@pytest.mark.parametrize("name", BUILDABLE)
def test_the_server_takes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=96e9))
    recipe = recipes.load(name)
    file = Folders.under(tmp_path, recipe, "bf16", Path("/e")).settings
    file.parent.mkdir()
    app = Typer()
    app.command()(serve_settings.main)
    options = ["--target", name, "--precision", "bf16", "--work", str(tmp_path)]
    assert CliRunner().invoke(app, options).exit_code == 0
    monkeypatch.setenv("ANGELSPEC_SETTINGS", str(file))
    settings = load()
    assert settings.target.engine == "tensorrt_llm"
    assert settings.target.feature_layers == recipe.captured_layers
    limits = settings.coordinator
    assert limits.max_sequences * (limits.depth + 1) + limits.prefill_rows <= recipe.limits.max_rows


def test_sequences_are_those_that_fit_and_at_most_those_of_the_engine() -> None:
    recipe = recipes.load("qwen3-8b")
    folders = Folders.under(Path("/w"), recipe, "bf16", Path("/e"))
    sizes = [settings_of(recipe, "bf16", folders, memory)["coordinator"]["max_sequences"] for memory in (96e9, 141e9)]
    assert sizes == [44, 64]


def test_drafters_whose_engines_are_built_are_served_by_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A block drafter for code and math, a recurrent one for chat; where there is only one, it has all."""
    recipe = recipes.load("qwen3-8b")
    folders = Folders.under(tmp_path, recipe, "bf16", Path("/e"))

    def served() -> Settings:
        folders.settings.parent.mkdir(exist_ok=True)
        folders.settings.write_text(yaml.safe_dump(settings_of(recipe, "bf16", folders, 96e9)))
        monkeypatch.setenv("ANGELSPEC_SETTINGS", str(folders.settings))
        return load()

    assert list(served().drafters) == ["drafter_prompt_lookup"]
    routes = []
    for name in ("drafter_mtp", "drafter_dfly"):
        folder = folders.drafters / name
        folder.mkdir(parents=True)
        (folder / "block.engine").touch()
        settings = served()
        assert settings.drafters[name].engine == "tensorrt"
        assert (settings.drafters[name].folder, settings.drafters[name].device) == (folder, "cuda")
        routes.append(settings.routes)
    assert set(routes[0].values()) == {"drafter_mtp"}
    assert routes[1] == {"chat": "drafter_mtp", "code": "drafter_dfly", "math": "drafter_dfly"}
    assert settings.shared_drafters == ("drafter_prompt_lookup",)


def test_a_gpu_that_is_too_small_is_refused() -> None:
    recipe = recipes.load("qwen3-30b-a3b")
    folders = Folders.under(Path("/w"), recipe, "bf16", Path("/e"))
    with pytest.raises(RecipeError, match="no room on 48 GB for one sequence of 8192 tokens"):
        settings_of(recipe, "bf16", folders, 48e9)
