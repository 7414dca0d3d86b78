"""`make serve ENGINE=tensorrt_llm` starts what `make engines` built, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from build_scripts import container_install, serve_engines
from build_scripts.container_install import ContainerInstall
from build_scripts.server import TritonServer
from build_scripts.triton_install import PreflightError
from trtllm_engines import pin, validate
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import Folders
from trtllm_engines.plan import GPUS
from trtllm_engines.serve_settings import settings_of

RECORDED = Path(__file__).parent.parent / "trtllm_engines" / "engine_config.json"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder as `make engines TARGET=qwen3-8b` leaves it on an H20, but for the engine itself."""
    target = tmp_path / "qwen3-8b-bf16" / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(RECORDED.read_text())
    (target / pin.STAMP).write_text(json.dumps({"target": "qwen3-8b", "sm": 90}))
    (target / "rank0.engine").touch()
    recipe = recipes.load("qwen3-8b")
    folders = Folders.under(tmp_path, recipe, "bf16", Path(pin.EXAMPLES))
    folders.settings.write_text(yaml.safe_dump(settings_of(recipe, "bf16", folders, GPUS[0].memory)))
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[TritonServer]:
    servers: list[TritonServer] = []
    monkeypatch.setattr(serve_engines, "foreground", lambda make: servers.append(make(lambda _: None)))
    return servers


def test_it_serves_with_the_settings_of_the_engines(built: Path, started: list[TritonServer]) -> None:
    assert run(built, "--http-port", "9000").exit_code == 0
    (server,) = started
    assert server.settings.target.engine_folder == built / "qwen3-8b-bf16" / "target"
    assert server.http_url == "127.0.0.1:9000"


def test_models_are_loaded_as_the_ordinary_launcher_loads_them(built: Path, started: list[TritonServer]) -> None:
    """Engines, twin and alias at the start; the coordinator by a call once they answer, so it is not among them."""
    assert run(built).exit_code == 0
    command = started[0].command()
    assert "--model-control-mode=explicit" in command
    loaded = [word.removeprefix("--load-model=") for word in command if word.startswith("--load-model=")]
    assert loaded == ["target", "drafter_prompt_lookup", "angelspec_infer", "tensorrt_llm_bls"]


def test_an_engine_that_does_not_fit_is_not_served(built: Path, started: list[TritonServer]) -> None:
    file = built / "qwen3-8b-bf16" / "target" / "config.json"
    config = json.loads(file.read_text())
    config["build_config"]["max_num_tokens"] = 512
    file.write_text(json.dumps(config))
    result = run(built)
    assert (result.exit_code, started) == (1, [])
    assert "2048 or more" in result.output


def test_another_gpu_is_not_served(built: Path, started: list[TritonServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_engines, "serving_sm", lambda: 100)
    assert validate.serving_sm() == pin.SM  # no GPU here: the check is against H20
    result = run(built)
    assert (result.exit_code, started) == (1, [])


def test_without_engines_it_says_how_to_get_them(tmp_path: Path, started: list[TritonServer]) -> None:
    result = run(tmp_path)
    assert (result.exit_code, started) == (1, [])
    assert "run `python3 -m build_scripts.engines --target qwen3-8b`" in result.output


def test_without_tritonserver_it_points_to_the_container(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_install.shutil, "which", lambda _: None)
    result = run(built)
    assert result.exit_code == 1
    assert "docs/h20.md" in result.output


def test_the_containers_server_finds_its_backends_beside_itself(tmp_path: Path) -> None:
    install = ContainerInstall(tmp_path / "bin" / "tritonserver")
    assert install.backends(tmp_path / "cache") == tmp_path / "backends"
    with pytest.raises(PreflightError, match="no tritonserver here"):
        install.check()
    install.binary.parent.mkdir()
    install.binary.touch()
    install.check()


def test_a_dry_run_prints_the_commands_without_engines(tmp_path: Path, started: list[TritonServer]) -> None:
    result = run(tmp_path, "--dry-run")
    assert (result.exit_code, started) == (0, [])
    assert f"ANGELSPEC_SETTINGS={tmp_path}/qwen3-8b-bf16/angelspec.yaml" in result.output
    assert "--model-control-mode=explicit" in result.output
    assert "curl -f -X POST localhost:8000/v2/repository/models/angelspec/load" in result.output


def test_ranks_are_started_by_mpirun_with_the_server_as_the_first(
    tmp_path: Path, started: list[TritonServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = recipes.load("qwen3-8b").model_copy(update={"tensor_parallel": 4})
    monkeypatch.setattr(serve_engines.recipes, "load", lambda _: shared)
    result = run(tmp_path, "--dry-run")
    words = result.output.replace("\\\n", " ").split()
    begin, split = words.index("mpirun"), words.index(":")
    assert words[begin : begin + 6] == ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1"]
    assert words[begin + 6].endswith("tritonserver")
    assert "--load-model=target" in words[begin:split]
    assert words[split + 1 : split + 6] == ["-n", "3", "python3", "-m", "trtllm_engines.runtime.rank"]


def test_one_gpu_needs_no_mpirun(tmp_path: Path, started: list[TritonServer]) -> None:
    assert "mpirun --" not in run(tmp_path, "--dry-run").output


def test_several_gpus_without_mpirun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonServer, "check", lambda _: None)
    monkeypatch.setattr(serve_engines.shutil, "which", lambda _: None)
    with pytest.raises(PreflightError, match="4 GPUs share the target, and there is no mpirun here"):
        serve_engines.RankedServer(4, install=ContainerInstall(Path("tritonserver"))).check()


def run(work: Path, *arguments: str):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(serve_engines.main)
    return CliRunner().invoke(app, ["--target", "qwen3-8b", "--work", str(work), *arguments])
