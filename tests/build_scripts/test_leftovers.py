"""What killed servers left goes, what belongs to anyone alive stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from build_scripts import leftovers
from build_scripts.leftovers import Claim
from python_backend.triton_bridge.link import link_folder

OWNER = """
    import subprocess, sys, time
    from pathlib import Path
    from build_scripts.leftovers import Claim

    folder, prefix = Path(sys.argv[1]), sys.argv[2]
    claim = Claim.take(prefix, folder)
    (folder / f"{prefix}region").write_bytes(b"x")
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, pass_fds=[claim.held])
    claim.name_server(child.pid)
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path):
    """Start a launcher with a child that holds its claim, as tritonserver does. Gives (launcher, pid of the child)."""
    started = []

    def start(prefix):
        words = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path), prefix]
        launcher = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert launcher.stdout
        child = int(launcher.stdout.readline())
        started.append((launcher, child))
        return launcher, child

    yield start
    for launcher, child in started:
        launcher.kill()
        launcher.wait()
        if is_sleep(child):
            os.kill(child, 9)


def is_sleep(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return line.read().startswith(b"sleep")
    except OSError:
        return False


def kill(launcher, child):
    """Both, as the kernel does for want of memory."""
    launcher.kill()
    launcher.wait()
    os.kill(child, 9)
    deadline = time.monotonic() + 30
    while is_there(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_there(pid):
    """Whether it was not reaped yet; whoever adopted it may take a moment."""
    return os.path.exists(f"/proc/{pid}")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_server_s_memory_and_folder_go_and_a_living_one_s_stay(tmp_path, owner):
    dead, alive = owner("angelspec-1-8000-aa-"), owner("angelspec-2-8000-bb-")
    folders = [link_folder(pid) for _, pid in (dead, alive)]
    for folder in folders:
        folder.mkdir(mode=0o700)
        (folder / "coordinator").touch()
    try:
        kill(*dead)
        assert [claim.name for claim in leftovers.sweep(tmp_path)] == ["angelspec-1-8000-aa-claim"]
        assert names(tmp_path) == ["angelspec-2-8000-bb-claim", "angelspec-2-8000-bb-region"]
        assert [folder.exists() for folder in folders] == [False, True]
    finally:
        for folder in folders:
            (folder / "coordinator").unlink(missing_ok=True)
            if folder.exists():
                folder.rmdir()


def test_a_server_that_outlives_its_launcher_keeps_its_memory(tmp_path, owner):
    launcher, child = owner("angelspec-1-8000-aa-")
    launcher.kill()
    launcher.wait()
    assert leftovers.sweep(tmp_path) == []
    assert len(names(tmp_path)) == 2
    kill(launcher, child)
    assert len(leftovers.sweep(tmp_path)) == 1
    assert names(tmp_path) == []


def test_memory_without_a_claim_and_foreign_names_are_left_alone(tmp_path):
    for name in ("angelspec-1-8000-region", "other-1-8000-claim", "psm_12345"):
        (tmp_path / name).touch()
    assert leftovers.sweep(tmp_path) == []
    assert len(names(tmp_path)) == 3


def test_another_user_s_claim_is_left_alone(tmp_path, monkeypatch):
    os.close(Claim.take("angelspec-1-8000-aa-", tmp_path).held)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert leftovers.sweep(tmp_path) == []
    assert names(tmp_path) == ["angelspec-1-8000-aa-claim"]


def test_a_link_folder_whose_process_id_was_given_anew_stays(tmp_path):
    """This test's own process stands for the one that has the id now."""
    claim = Claim.take("angelspec-1-8000-aa-", tmp_path)
    claim.name_server(os.getpid())
    os.close(claim.held)
    folder = link_folder(os.getpid())
    folder.mkdir(mode=0o700)
    try:
        leftovers.sweep(tmp_path)
        assert folder.exists()
    finally:
        folder.rmdir()


def test_a_server_that_nobody_reaped_is_dead(tmp_path):
    unreaped = subprocess.Popen(["true"])
    assert os.waitid(os.P_PID, unreaped.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in /proc
    claim = Claim.take("angelspec-1-8000-aa-", tmp_path)
    claim.name_server(unreaped.pid)
    os.close(claim.held)
    leftovers.sweep(tmp_path)
    assert names(tmp_path) == []
    unreaped.wait()


def test_a_claim_cannot_be_taken_twice_and_prefixes_differ(tmp_path):
    Claim.take("angelspec-1-8000-aa-", tmp_path)
    with pytest.raises(FileExistsError):
        Claim.take("angelspec-1-8000-aa-", tmp_path)
    assert leftovers.unique_prefix(8000) != leftovers.unique_prefix(8000)
