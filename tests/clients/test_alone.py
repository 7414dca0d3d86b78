"""The clients work in a folder of their own, with no other code of this repository."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from python_backend.settings import ROOT

CLIENTS = ROOT / "clients"
PROGRAMS = sorted(f.stem for f in CLIENTS.glob("*.py") if "__main__" in f.read_text())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(CLIENTS, folder / "clients", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_copied_program_starts(copied: Path, program: str) -> None:
    command = [sys.executable, "-P", "-m", f"clients.{program}", "--help"]
    told = subprocess.run(command, cwd=copied, env={"PYTHONPATH": str(copied)}, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "--help" in told.stdout


def test_nothing_of_the_repository_is_named_but_the_clients() -> None:
    others = {f.name for f in ROOT.iterdir() if f.is_dir() and any(f.glob("*.py"))} - {"clients"}
    for file in CLIENTS.rglob("*.py"):
        words = [n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)]
        named = [w for w in words if isinstance(w, str) and any(w.startswith(f"{other}.") for other in others)]
        assert named == [], file


def test_there_are_programs() -> None:
    assert {"demo", "chat", "generate", "load_test"} <= set(PROGRAMS)
