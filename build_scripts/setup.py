"""Make the environment that everything runs in: `python3.11 -m build_scripts.setup`.

Needs nothing but Python's standard library. A stamp of the lock files makes the second run quick.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "angelspec.lock"
NO_DEPS_LOCK = ROOT / "requirements" / "no-deps.lock"
STAMP = "angelspec-setup"
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"  # where build_scripts.fetch_model puts it, complete or not at all
PYTHON = (3, 11)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=VENV, help="folder of the environment (default: .venv)")
    parser.add_argument("--force", action="store_true", help="install again even if nothing changed")
    parser.add_argument(
        "--pip-args",
        default=os.environ.get("PIP_ARGS", ""),
        help="further arguments of pip install, such as --extra-index-url of a CPU build of torch (default: $PIP_ARGS)",
    )
    arguments = parser.parse_args()
    try:
        set_up(arguments.venv, shlex.split(arguments.pip_args), arguments.force)
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


class SetupError(RuntimeError):
    """The environment cannot be made; the message says what to do."""


def set_up(venv: Path, pip_args: list[str], force: bool = False) -> None:
    """Environment, packages, embedded model. Raises SetupError, or CalledProcessError where a step fails."""
    check_python()
    stamp = venv / STAMP
    if force or not stamp.is_file() or stamp.read_text() != fingerprint():
        make_venv(venv)
        stamp.unlink(missing_ok=True)
        install(venv, pip_args)
        stamp.write_text(fingerprint())
    if force or not MODEL.is_dir():
        fetch_model(venv)


def check_python() -> None:
    """Raise SetupError unless this is the Python that the lock is made for."""
    if sys.version_info[:2] != PYTHON:
        raise SetupError(
            f"this is Python {sys.version_info.major}.{sys.version_info.minor}, the packages are locked for "
            f"{PYTHON[0]}.{PYTHON[1]}: install that and run `make PYTHON=/path/to/it ...`"
        )


def fingerprint() -> str:
    """Changes with the lock files and with the Python that the environment is made from."""
    digest = hashlib.sha256(sys.version.encode())
    for lock in (LOCK, NO_DEPS_LOCK):
        digest.update(lock.read_bytes())
    return digest.hexdigest()


def make_venv(venv: Path) -> None:
    """An environment of this Python; one that another Python made is replaced."""
    python = venv / "bin" / "python"
    if python.exists():
        version = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
        if version.stdout.strip() == sys.version:
            return
        shutil.rmtree(venv)
    print(f"making {venv} with Python {sys.version.split()[0]}", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True)
    if made.returncode:
        raise SetupError(f"{(made.stdout + made.stderr).strip()}\n(on Debian and Ubuntu: install python3.11-venv)")


def install(venv: Path, pip_args: list[str]) -> None:
    """Everything in the locks. The second one holds packages of which only the files are used, not the code."""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *pip_args]
    print(f"installing {LOCK.relative_to(ROOT)}: a few minutes and about 3 GB at the first time", flush=True)
    subprocess.run([*pip, "-r", LOCK], check=True)
    subprocess.run([*pip, "--no-deps", "-r", NO_DEPS_LOCK], check=True)


def fetch_model(venv: Path) -> None:
    subprocess.run([venv / "bin" / "python", "-m", "build_scripts.fetch_model"], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
