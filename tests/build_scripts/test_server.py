"""The launcher without a server: what it checks, how it is told of settings, what it would run."""

from __future__ import annotations

import contextlib
import os
import socket

import httpx
import pytest
import typer
from typer.testing import CliRunner

from build_scripts import devices, serve, server_log, with_server
from build_scripts.server import TritonServer, overridden
from build_scripts.triton_install import PreflightError
from python_backend.settings import COMPATIBLE_MODELS


def test_settings_come_from_the_overrides_and_leave_the_environment_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("ANGELSPEC_CACHE_DIR", raising=False)
    server = TritonServer(environment={"ANGELSPEC_CACHE_DIR": str(tmp_path)})
    assert server.settings.cache_dir == tmp_path
    assert server.log.is_relative_to(tmp_path)
    assert "ANGELSPEC_CACHE_DIR" not in os.environ


def test_the_environment_comes_back_after_an_error(monkeypatch):
    monkeypatch.setenv("ANGELSPEC_TEST", "before")
    inside = {"ANGELSPEC_TEST": "inside", "ANGELSPEC_OTHER": "inside"}
    with contextlib.suppress(ValueError), overridden(inside):
        assert os.environ["ANGELSPEC_TEST"] == "inside"
        raise ValueError
    assert os.environ["ANGELSPEC_TEST"] == "before"
    assert "ANGELSPEC_OTHER" not in os.environ


def test_ports_of_0_are_chosen_and_others_kept():
    server = TritonServer(http_port=18123)
    assert server.http_url == "127.0.0.1:18123"
    assert len({server.http_url, server.grpc_url, server.metrics_url}) == 3


def test_a_model_that_was_not_fetched_is_named_with_the_remedy(tmp_path):
    server = TritonServer(environment={"ANGELSPEC_CACHE_DIR": str(tmp_path)})
    with pytest.raises(PreflightError, match=r"smollm2-135m.*make setup"):
        server.check()


def test_every_drafter_of_the_settings_is_loaded_before_the_coordinator(tmp_path):
    drafters = '{"drafter_a": {"kind": "prompt_lookup"}, "drafter_b": {"kind": "prompt_lookup"}}'
    environment = {"ANGELSPEC_DRAFTERS": drafters, "ANGELSPEC_CACHE_DIR": str(tmp_path)}
    command = TritonServer(environment=environment).command()
    assert {"--load-model=target", "--load-model=drafter_a", "--load-model=drafter_b"} <= set(command)
    assert "--load-model=angelspec" not in command


class Running:
    def poll(self):
        return None


@pytest.mark.parametrize(
    ("setting", "first", "last"),
    [
        (None, {"tensorrt_llm_bls"}, "ensemble"),
        ('["ensemble"]', set(), "ensemble"),
        ('["tensorrt_llm_bls"]', {"tensorrt_llm_bls"}, "angelspec"),
        ("[]", set(), "angelspec"),
    ],
    ids=["default", "ensemble", "alias", "none"],
)
def test_the_names_of_tensorrt_llms_backend_are_loaded_as_far_as_the_setting_has_them(
    monkeypatch, setting, first, last
):
    """The ensemble takes the coordinator along: one load call, so that this is loaded once."""
    calls = []
    monkeypatch.setattr(httpx, "post", lambda url, **_: calls.append(url) or httpx.Response(200))
    variables = {} if setting is None else {"ANGELSPEC_COORDINATOR__COMPATIBLE_MODELS": setting}
    server = TritonServer(environment=variables)
    server._process = Running()
    assert {name for name in COMPATIBLE_MODELS if f"--load-model={name}" in server.command()} == first
    server.load_coordinator()
    assert calls == [f"http://{server.http_url}/v2/repository/models/{last}/load"]


def test_a_repository_without_them_is_served_all_the_same(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(httpx, "post", lambda url, **_: calls.append(url) or httpx.Response(200))
    server = TritonServer(repository=tmp_path)
    server._process = Running()
    server.load_coordinator()
    assert [url.split("/")[-2] for url in calls] == ["angelspec"]


def test_serve_reports_a_taken_port_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run_serve("--http-port", str(port), "--grpc-port", "0", "--metrics-port", "0")
    assert result.exit_code == 1
    assert f"error: http port {port} on 127.0.0.1 cannot be used" in " ".join(result.output.split())


def test_serve_reports_a_wrong_setting_by_its_key(monkeypatch):
    monkeypatch.setenv("ANGELSPEC_COORDINATOR__DEPTH", "-1")
    result = run_serve()
    assert result.exit_code == 1
    assert "coordinator.depth" in result.output
    assert "Traceback" not in result.output


def run_serve(*arguments):
    app = typer.Typer()
    app.command()(serve.main)
    return CliRunner().invoke(app, list(arguments))


def test_a_port_that_answers_something_else_is_no_server():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        assert not with_server.is_serving(f"127.0.0.1:{other.getsockname()[1]}")


def test_a_client_programs_exit_status_is_passed_on():
    assert with_server.run("clients.demo", ["--no-such-option"], "127.0.0.1:1") == 2


def test_serve_reports_an_unknown_key_with_its_file_and_the_nearest(monkeypatch, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("budget: {polcy: 'off'}")
    monkeypatch.setenv("ANGELSPEC_SETTINGS", str(file))
    result = run_serve()
    assert result.exit_code == 1
    said = "".join(result.output.split())
    assert f"error:{file}:unknownkey'budget.polcy';didyoumean'budget.policy'?" in said
    assert "pydantic" not in said


def test_a_hub_name_is_said_to_be_none_that_is_fetched():
    server = TritonServer(environment={"ANGELSPEC_TARGET__CHECKPOINT": "Qwen/Qwen3-0.6B"})
    with pytest.raises(PreflightError, match=r"names of the hub are not fetched.*`hf download Qwen/Qwen3-0.6B"):
        server.check()


@pytest.mark.parametrize(
    ("there", "device", "has"), [(0, "cuda", "no GPUs"), (1, "cuda:1", "1 GPU"), (2, "cuda:2", "2 GPUs")]
)
def test_a_gpu_that_is_not_there_is_named_before_anything_starts(monkeypatch, there, device, has):
    monkeypatch.setattr(devices, "gpus", lambda: there)
    server = TritonServer(environment={"ANGELSPEC_TARGET__DEVICE": device, "ANGELSPEC_TARGET__ENGINE": "torch"})
    with pytest.raises(PreflightError, match=f"target.device is '{device}', and this machine has {has} that CUDA"):
        server.check()


LOG = """\
I1201 02:00:00.000001 7 model_lifecycle.cc:839] "successfully loaded 'target'"
I1201 02:00:01.000001 7 observe.py:52] "python_backend.coordinator.service: profiling 3/42"
I1201 02:00:02.000001 7 model_lifecycle.cc:839] "successfully loaded 'target'"
E1201 02:00:03.000001 7 model_lifecycle.cc:642] "failed to load 'drafter' version 1: Internal: E: no drafter\\nAt: x"
E1201 02:00:04.000001 7 observe.py:48] "python_backend.coordinator.loop: thread died\\nTraceback: x"
I1201 02:00:05.000001 7 model_lifecycle.cc:624] "successfully unloaded 'target' version 1"
"""


def test_the_log_is_read_for_reasons_and_for_what_never_ended(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(LOG)
    assert server_log.last_words(log) == "thread died"
    assert server_log.last_error(log) == "thread died"
    assert server_log.last_error(log, skip=5) == ""
    assert server_log.load_failure(log) == "model 'drafter' did not load: E: no drafter"
    assert server_log.never_unloaded(log) == ["target"]  # loaded twice: the first one's process never ended
    assert server_log.last_words(tmp_path / "none") == ""
