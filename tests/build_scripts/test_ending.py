"""How a server ends, against a stand-in for tritonserver: what was not in order is said, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from build_scripts import drain, leftovers, server_log
from build_scripts import server as launcher
from build_scripts.readiness import Watch
from build_scripts.server import TritonServer
from build_scripts.triton_install import SHM
from python_backend.triton_bridge.link import link_folder

STAND_IN = Path(__file__).with_name("tritonserver.py")


@dataclass(frozen=True)
class StandIn:
    """An installation whose tritonserver needs no model."""

    binary: Path

    def check(self):
        pass

    def backends(self, cache):
        return cache

    def environment(self):
        return {}


@pytest.fixture
def faults(tmp_path):
    """What the stand-in is to do wrong, as words in a file."""
    return tmp_path / "faults"


@pytest.fixture
def server(tmp_path, faults, monkeypatch):
    binary = tmp_path / "tritonserver"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    binary.chmod(0o755)
    environment = {
        "STAND_IN": str(faults),
        "ANGELSPEC_COORDINATOR__DRAIN_S": "1",
        "ANGELSPEC_CACHE_DIR": str(tmp_path / "cache"),
    }
    monkeypatch.setattr(launcher, "resolve_checkpoint", lambda settings: None)
    made = TritonServer(environment=environment, install=StandIn(binary))
    yield made
    made.kill()


def regions(server):
    return list(SHM.glob(f"{server.shm_prefix}*"))


def test_a_stop_in_order_says_nothing_and_leaves_nothing(server):
    server.start()
    assert len(regions(server)) == 2  # a region and the claim
    assert server.stop() == ""
    assert regions(server) == []


def test_a_model_that_does_not_unload_is_named(server, faults):
    faults.write_text("keep-angelspec")
    server.start()
    said = server.stop()
    assert "'angelspec' did not unload within 1 s (coordinator.drain_s)" in said
    assert "tritonserver ended with status 1, angelspec still loaded" in said
    assert regions(server) == []


def test_a_model_without_open_requests_that_does_not_unload_is_not_waited_for_long(server, faults, monkeypatch):
    monkeypatch.setattr(drain, "IDLE_S", 0.3)
    faults.write_text("keep-angelspec idle")
    server.start()
    assert "'angelspec' had no open requests and did not unload within 0.3 s" in server.stop()


def test_a_server_that_does_not_end_is_killed_and_that_is_said(server, faults, monkeypatch):
    monkeypatch.setattr(launcher, "EXIT_S", 1)
    faults.write_text("deaf")
    server.start()
    assert server.stop() == "tritonserver did not end within 2 s and was killed"
    assert regions(server) == []


def test_after_a_crash_nothing_is_left_even_if_tidying_is_interrupted(server, monkeypatch):
    server.start()
    pid = server._process.pid
    folder = link_folder(pid)
    folder.mkdir(mode=0o700)
    os.kill(pid, signal.SIGSEGV)
    server._process.wait()

    def interrupted(group):
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "wait_for_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.kill()
    assert regions(server) == []
    assert not folder.exists()


def test_the_server_and_its_models_hold_the_claim_too(server):
    server.start()
    os.close(server._claim.held)  # as if the launcher had been killed
    assert leftovers.sweep() == []
    assert len(regions(server)) == 2
    server.kill()
    assert regions(server) == []


def test_readiness_that_goes_and_comes_is_told_once_each_with_the_last_error(server, faults):
    server.start()
    watch = Watch(server.http_url, server.metrics_url, server.log, lambda: True)
    assert watch.look() == ""
    for fault in ("metric-0", "not-ready"):
        with server.log.open("a") as log:
            log.write(f'E1201 02:00:09.000001 7 observe.py:48] "python_backend.coordinator.service: cause: {fault}"\n')
        faults.write_text(fault)
        assert watch.look() == f"not ready: cause: {fault} (log: {server.log})"
        assert watch.look() == ""
        faults.write_text("")
        assert watch.look() == "ready again"
        assert watch.look() == ""
    faults.write_text("not-ready")
    assert "the log gives no reason" in watch.look()
    assert server_log.never_unloaded(server.log)
