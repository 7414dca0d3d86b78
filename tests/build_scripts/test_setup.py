"""Set-up is idempotent, notices a changed lock, and starts from nothing but Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain

import pytest
from packaging.requirements import Requirement

from build_scripts import setup


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The slow steps, recorded; the locks are copies."""
    done: list[str] = []

    def make_venv(venv):
        venv.mkdir(exist_ok=True)
        done.append("venv")

    monkeypatch.setattr(setup, "make_venv", make_venv)
    monkeypatch.setattr(setup, "install", lambda venv, pip_args: done.append("install"))
    monkeypatch.setattr(setup, "fetch_model", lambda venv: done.append("model"))
    monkeypatch.setattr(setup, "MODEL", tmp_path / "model")
    for name in ("LOCK", "NO_DEPS_LOCK"):
        copy = tmp_path / name
        copy.write_text("numpy==1.26.4\n")
        monkeypatch.setattr(setup, name, copy)
    return done


def test_the_second_run_does_nothing(steps, tmp_path):
    setup.set_up(tmp_path / "venv", [])
    assert steps == ["venv", "install", "model"]
    setup.MODEL.mkdir()
    steps.clear()
    setup.set_up(tmp_path / "venv", [])
    assert steps == []


@pytest.mark.parametrize("name", ["LOCK", "NO_DEPS_LOCK"])
def test_a_changed_lock_is_installed(steps, tmp_path, name):
    setup.set_up(tmp_path / "venv", [])
    setup.MODEL.mkdir()
    steps.clear()
    getattr(setup, name).write_text("numpy==1.26.3\n")
    setup.set_up(tmp_path / "venv", [])
    assert steps == ["venv", "install"]


def test_an_installation_that_failed_is_done_again(steps, tmp_path, monkeypatch):
    def fail(venv, pip_args):
        raise subprocess.CalledProcessError(1, "pip")

    with monkeypatch.context() as broken:
        broken.setattr(setup, "install", fail)
        with pytest.raises(subprocess.CalledProcessError):
            setup.set_up(tmp_path / "venv", [])
    steps.clear()
    setup.set_up(tmp_path / "venv", [])
    assert "install" in steps


def test_another_python_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(setup, "PYTHON", (3, 12))
    with pytest.raises(setup.SetupError, match=r"this is Python 3\.11, .* locked for 3\.12: .*make PYTHON="):
        setup.check_python()


def test_set_up_needs_only_the_standard_library():
    result = subprocess.run(
        [sys.executable, "-S", "-m", "build_scripts.setup", "--help"], cwd=setup.ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "--pip-args" in result.stdout


def pins(path):
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return {re.sub(r"[-_.]+", "-", n.lower()): v for n, v in (line.split("==") for line in lines if line)}


def test_the_locks_pin_every_package_and_agree_with_the_top_level():
    top = pins(setup.LOCK.with_name("angelspec.in"))
    locked = pins(setup.LOCK)
    assert {name: locked.get(name) for name in top} == top
    assert int(locked["numpy"].split(".")[0]) < 2


def test_this_environment_is_what_the_locks_say():
    for path in (setup.LOCK, setup.NO_DEPS_LOCK):
        for name, version in pins(path).items():
            assert metadata.version(name).split("+")[0] == version


def test_pyproject_names_the_same_packages_and_allows_what_is_locked():
    project = tomllib.loads((setup.ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {r.name.lower(): r for r in map(Requirement, chain.from_iterable(groups))}
    locked = {name.lower(): version for name, version in pins(setup.LOCK).items()}
    assert wanted.keys() == {name.lower() for name in pins(setup.LOCK.with_name("angelspec.in"))}
    assert [name for name, r in wanted.items() if not r.specifier.contains(locked[name], prereleases=True)] == []
