"""What `make test-container` runs: the tests of what TensorRT-LLM's container runs, with its release of transformers.

The packages are put into the cache, in front of those of the environment, which stays as it is. PIP_ARGS goes to pip.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from python_backend.settings import ROOT, load

# transformers as TensorRT-LLM 1.2.1 pins it, and the newest of what it takes beside it
PACKAGES = ("transformers==4.57.3", "tokenizers==0.22.1", "huggingface_hub==0.36.0")
TESTS = (
    "tests/python_backend/engines/test_rope.py",
    "tests/python_backend/checkpoints/test_checkpoint.py",
    "tests/python_backend/engines/test_transformers_agreement.py",
    "tests/python_backend/drafters",
    "tests/python_backend/checkpoints/test_tokenizer.py",
    "tests/trtllm_engines/runtime",
    "tests/trtllm_engines/test_drafter_graphs.py",
    "tests/trtllm_engines/test_target_model.py",
)


def install(folder: Path) -> None:
    """Fetch the packages where they are not there; nothing that they need comes along."""
    done = folder / "installed"
    if done.is_file() and done.read_text() == str(PACKAGES):
        return
    more = shlex.split(os.environ.get("PIP_ARGS", ""))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, *more, *PACKAGES], check=True)
    done.write_text(str(PACKAGES))


def main(
    tests: Annotated[list[str] | None, typer.Argument(help="Instead of those that the container needs.")] = None,
) -> None:
    """Exits with pytest's code."""
    folder = (load().cache_dir / "transformers-4.57").resolve()
    install(folder)
    before = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else str(folder)}
    said = "import transformers; print('transformers', transformers.__version__)"
    subprocess.run([sys.executable, "-c", said], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", *(tests or TESTS)]
    raise typer.Exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    typer.run(main)
