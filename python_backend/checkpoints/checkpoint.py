"""A checkpoint in a local Hugging Face folder: where it is, its files and the checksum of its weights. No torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from python_backend.files import appearing
from python_backend.settings import Settings

EMBEDDED = "smollm2-135m"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/model
RECORD = "weights.json"  # checksum and size of the weights, beside them

Progress = Callable[[int], None]  # called with the number of bytes just read


class CheckpointError(ValueError):
    """The folder is missing, incomplete, or holds a model that is not supported."""


def resolve_checkpoint(settings: Settings) -> Path:
    """The folder of `target.checkpoint`: the embedded model's name, else a path.

    Raises CheckpointError where it holds no config.json.
    """
    name = settings.target.checkpoint
    folder = embedded_folder(settings) if name == EMBEDDED else Path(name).expanduser()
    if not (folder / "config.json").is_file():
        remedy = "run `make setup`" if name == EMBEDDED else f"give a Hugging Face folder, or '{EMBEDDED}'"
        if HUB_NAME.fullmatch(name) and not folder.exists():
            remedy = (
                "names of the hub are not fetched; download it yourself, such as with "
                f"`hf download {name} --local-dir FOLDER`, and give the FOLDER"
            )
        raise CheckpointError(f"target.checkpoint is '{name}', but '{folder}' holds no config.json: {remedy}")
    return folder


def embedded_folder(settings: Settings) -> Path:
    """Where the embedded model is kept."""
    return settings.cache_dir / "models" / EMBEDDED


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, by name. Raises CheckpointError where there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"'{folder}' holds no *.safetensors file: convert the weights to safetensors first")
    return files


def weights_sha256(folder: Path) -> str:
    """Checksum of the weights: as recorded while file names and sizes still match, else computed and recorded."""
    sizes = _sizes(folder)
    record = folder / RECORD
    if record.is_file():
        recorded = json.loads(record.read_text())
        if recorded["sizes"] == sizes:
            return str(recorded["sha256"])
    try:
        return record_checksum(folder)
    except PermissionError:  # a read-only model store: the checksum costs a full read at every start
        return hash_weights(folder)


def record_checksum(folder: Path, progress: Progress = lambda _: None, **notes: str) -> str:
    """Read all weights, write their checksum beside them with any further notes, and return it."""
    digest = hash_weights(folder, progress)
    record = {"sha256": digest, "sizes": _sizes(folder), **notes}
    with appearing(folder / RECORD) as part:
        part.write_text(json.dumps(record, indent=2) + "\n")
    return digest


def hash_weights(folder: Path, progress: Progress = lambda _: None) -> str:
    """SHA-256 over the safetensors files in the order of their names."""
    digest = hashlib.sha256()
    for file in weight_files(folder):
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
                progress(len(block))
    return digest.hexdigest()


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in weight_files(folder)}
