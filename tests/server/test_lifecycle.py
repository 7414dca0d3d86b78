"""A server that cannot come up says why, one that loses an engine gets over it, and none leaves anything behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from build_scripts import server as launcher
from build_scripts.server import REPOSITORY, ServerStartError
from build_scripts.triton_install import SHM
from clients import transport, wire
from clients.wire import ServerError
from python_backend.settings import ROOT
from python_backend.triton_bridge.link import link_folder
from tests.server.conftest import ServerUnderTest

pytestmark = pytest.mark.server

PROMPT = {"text_input": "The capital of France is", "max_tokens": 4}
STORY = {"messages": wire.chat_messages(("user", "Tell me a story."))}
SMALL = {
    "ANGELSPEC_COORDINATOR__MAX_SEQUENCES": "4",
    "ANGELSPEC_COORDINATOR__DRAIN_S": "120",
    "ANGELSPEC_BUDGET__POLICY": "fixed",
}

TARGET_OF_THREE_SLOTS = """
from dataclasses import dataclass

from python_backend.protocol import Description
from python_backend.triton_bridge.models import EngineModel


class Engine:
    def describe(self):
        return Description("idle", "target", "none", "1", "float32", "cpu", "", 49152, 3, 2048, (), 0)


class TritonPythonModel:
    def initialize(self, args):
        self.model = EngineModel.of_target(Engine())

    def execute(self, requests):
        return self.model.execute(requests)
"""


IDLE_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def repository_with(folder: Path, model: str, code: str) -> Path:
    """The shipped models, one of them with other code."""
    for shipped in REPOSITORY.iterdir():
        if shipped.name != model:
            (folder / shipped.name).symlink_to(shipped)
    shutil.copytree(REPOSITORY / model, folder / model)
    (folder / model / "1" / "model.py").write_text(code)
    return folder


@pytest.fixture
def idle_repository(tmp_path):
    """The shipped configurations with models that do nothing: such a server starts fast."""
    for shipped in REPOSITORY.iterdir():
        shutil.copytree(shipped, tmp_path / shipped.name)
        (tmp_path / shipped.name / "1" / "model.py").write_text(IDLE_MODEL)
    return tmp_path


def processes(text: str) -> list[int]:
    """Living processes whose command line has this text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(int(folder.name))
    return found


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.1)


def test_engines_that_do_not_fit_stop_the_start_with_both_numbers(tmp_path):
    repository = repository_with(tmp_path, "target", TARGET_OF_THREE_SLOTS)
    server = ServerUnderTest(repository=repository, environment=SMALL)
    with pytest.raises(ServerStartError, match=r"the target has 3 slots, coordinator\.max_sequences is 4"):
        server.start()
    assert processes(str(repository)) == []


def test_a_model_that_does_not_load_stops_the_start_with_its_error(tmp_path):
    repository = repository_with(tmp_path, "drafter_prompt_lookup", "raise RuntimeError('no drafter today')")
    environment = SMALL | {"ANGELSPEC_DRAFTERS__DRAFTER_PROMPT_LOOKUP__PROCESS": "own"}
    server = ServerUnderTest(repository=repository, environment=environment)
    with pytest.raises(ServerStartError, match="no drafter today"):
        server.start()
    assert processes(str(repository)) == []


def serve(repository: Path, **settings: str) -> subprocess.Popen[str]:
    """`make serve` on free ports, once it has said that it is ready."""
    arguments = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    process = subprocess.Popen(
        [sys.executable, "-m", "build_scripts.serve", f"--repository={repository}", *arguments],
        cwd=ROOT,
        env=os.environ | SMALL | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    assert re.search(r"ready +gRPC 127\.0\.0\.1:\d+ +HTTP 127\.0\.0\.1:\d+ +metrics 127\.0\.0\.1:\d+", line), line
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serve_and_its_server(idle_repository, number):
    process = serve(idle_repository)
    assert len(processes(str(idle_repository))) > 4  # the launcher, the server and its models
    process.send_signal(number)
    assert process.communicate(timeout=60)[0].endswith("stopped\n")
    assert process.returncode == 0
    assert processes(str(idle_repository)) == []


def test_a_launcher_that_is_killed_takes_the_server_with_it(idle_repository):
    process = serve(idle_repository)
    process.kill()
    process.communicate()
    wait_until(lambda: processes(str(idle_repository)) == [])


def regions(prefix):
    return sorted(path.name for path in SHM.glob(f"{prefix}*"))


def launched(process: subprocess.Popen[str]) -> set[int]:
    """The server and its models; the launcher's prefix holds its process id."""
    return set(processes(f"angelspec-{process.pid}-")) - {process.pid}


def test_what_a_killed_server_left_goes_at_the_next_start_and_a_living_one_s_stays(idle_repository):
    with ServerUnderTest(repository=idle_repository) as living:
        kept = regions(living.shm_prefix)
        assert len(kept) > 4  # a region a model, and the claim
        dead = serve(idle_repository)
        for pid in [dead.pid, *launched(dead)]:  # all at once, as for want of memory: nobody can tidy up
            os.kill(pid, signal.SIGKILL)
        dead.communicate()
        mark = f"angelspec-{dead.pid}-"
        assert len(list(SHM.glob(f"{mark}*"))) > 4
        wait_until(lambda: not processes(mark))
        time.sleep(1)  # a process that has no command line any more may still be closing its files
        with ServerUnderTest(repository=idle_repository):
            assert list(SHM.glob(f"{mark}*")) == []
            assert regions(living.shm_prefix) == kept
            assert httpx.get(f"http://{living.http_url}/v2/health/ready", timeout=30).status_code == 200


def test_a_server_that_crashes_is_reported_and_nothing_is_left_even_if_tidying_is_interrupted(
    idle_repository, monkeypatch
):
    server = ServerUnderTest(repository=idle_repository)
    server.start()
    pids = processes(server.shm_prefix)
    (main,) = processes(f"--http-port={server.ports['http']}")
    link = link_folder(main)
    link.mkdir(mode=0o700)  # the idle models make none
    for pid in pids:  # the models too, else they tidy up themselves
        os.kill(pid, signal.SIGSTOP)
    os.kill(main, signal.SIGSEGV)
    os.kill(main, signal.SIGCONT)
    wait_until(lambda: not server.is_running())

    def interrupted(group):
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "wait_for_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.kill()
    assert regions(server.shm_prefix) == []
    assert not link.exists()
    wait_until(lambda: not processes(server.shm_prefix))


def test_a_stop_that_is_not_in_order_says_what_was_and_where_the_log_is(idle_repository):
    process = serve(idle_repository, ANGELSPEC_COORDINATOR__DRAIN_S="1")
    (main,) = {pid for pid in launched(process) if b"--http-port" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    stuck = launched(process) - {main}
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)  # no model answers any more, so none can be unloaded
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=90)[0]
    assert re.search(r"stopped, but not in order: 'angelspec\w*' did not unload within 1 s", told), told
    assert ".log)" in told
    assert list(SHM.glob(f"angelspec-{process.pid}-*")) == []
    assert processes(str(idle_repository)) == []


def test_serve_says_once_that_the_coordinator_died(idle_repository):
    process = serve(idle_repository)
    (coordinator,) = {p for p in launched(process) if b"/angelspec/1/" in Path(f"/proc/{p}/cmdline").read_bytes()}
    os.kill(coordinator, signal.SIGKILL)
    assert process.stdout
    line = process.stdout.readline()
    assert "not ready: " in line, line
    assert ".log)" in line
    time.sleep(5)  # two more looks
    process.send_signal(signal.SIGINT)
    assert "not ready" not in process.communicate(timeout=90)[0]


class PlainTriton(ServerUnderTest):
    """Triton as one starts it by hand: all models at once, nothing loaded afterwards."""

    def command(self):
        return [word for word in super().command() if not word.startswith(("--model-control-mode", "--load-model"))]

    def load_coordinator(self):
        pass


def test_a_plain_tritonserver_serves_the_repository_as_it_is():
    with PlainTriton(environment=SMALL | {"ANGELSPEC_MODEL_CONTROL": ""}) as plain:
        assert len(transport.generate(PROMPT, plain.http_url).token_ids) == 4
        wait_until(lambda: plain.metric("angelspec_ready") == 1)


@pytest.fixture(scope="module")
def own_server():
    """One that tests may break."""
    with ServerUnderTest(environment=SMALL) as running:
        yield running


def stub(server: ServerUnderTest, model: str) -> int:
    """The process of a model."""
    (pid,) = set(processes(f"/{model}/1/model.py")) & set(processes(server.shm_prefix))
    return pid


def test_a_target_that_dies_fails_its_requests_shows_in_readiness_and_is_replaced(own_server):
    readiness = []
    ready = f"http://{own_server.http_url}/v2/health/ready"
    stream = transport.stream_grpc(STORY | {"max_tokens": 1500, "min_tokens": 1500}, own_server.grpc_url)
    next(stream)
    os.kill(stub(own_server, "target"), signal.SIGKILL)
    failed = threading.Event()

    def watch():
        while not failed.wait(0.1):
            readiness.append(httpx.get(ready, timeout=30).status_code)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(ServerError, match="the process of model 'target' died; it was replaced"):
        list(stream)
    failed.set()
    watcher.join()
    assert 400 in readiness
    assert len(transport.generate(PROMPT, own_server.http_url).token_ids) == 4
    assert httpx.get(ready, timeout=30).status_code == 200
    wait_until(lambda: own_server.slots_in_use() == 0)


def test_the_twin_forwards_to_a_coordinator_that_was_loaded_again(own_server):
    url = f"http://{own_server.http_url}/v2"

    def ask():
        return httpx.post(f"{url}/models/angelspec_infer/infer", json=wire.encode_infer(PROMPT), timeout=60)

    def unloaded():
        models = httpx.post(f"{url}/repository/index", timeout=60).json()
        return {m["name"]: m.get("state") for m in models}["angelspec"] == "UNAVAILABLE"

    assert ask().status_code == 200
    httpx.post(f"{url}/repository/models/angelspec/unload", timeout=60)
    wait_until(unloaded)
    assert "angelspec' is not loaded" in ask().text
    assert httpx.post(f"{url}/repository/models/angelspec/load", timeout=60).status_code == 200
    assert ask().status_code == 200


def test_stopping_lets_streams_finish_and_leaves_nothing_behind(own_server):
    counts: list[int] = []

    def read():
        chunks = transport.stream_grpc(STORY | {"max_tokens": 40, "min_tokens": 40}, own_server.grpc_url)
        counts.append(sum(len(chunk.token_ids) for chunk in chunks))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: own_server.slots_in_use() == 3)
    links = [link_folder(pid) for pid in processes(f"--http-port={own_server.ports['http']}")]
    own_server.stop()
    for thread in threads:
        thread.join()
    assert counts == [40, 40, 40]
    assert processes(own_server.shm_prefix) == []
    assert list(SHM.glob(f"{own_server.shm_prefix}*")) == []
    assert links
    assert not any(folder.exists() for folder in links)
