"""What the peers need below `.cache/peers`: an environment of their own, and the model as llama.cpp runs it fastest."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import gguf

from python_backend.settings import ROOT

LOCK = ROOT / "requirements" / "peers.lock"
STAMP = "peers-lock"


def environment(folder: Path) -> Path:
    """The Python that runs the peers; their packages are installed where the lock is new. Raises CalledProcessError."""
    venv = folder / "venv"
    python, stamp = venv / "bin" / "python", venv / STAMP
    mark = hashlib.sha256(sys.version.encode() + LOCK.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == mark:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([*pip, "--no-deps", "-r", str(LOCK)], check=True)
    stamp.write_text(mark)
    return python


def requantised(source: Path, folder: Path) -> Path:
    """The GGUF file with its Q4_1 blocks rounded once more, to Q4_0. Another model of the same size: for speed only."""
    target = folder / source.name.replace("Q4_1", "Q4_0")
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):  # written by the writer itself
            continue
        value = int(gguf.LlamaFileType.MOSTLY_Q4_0) if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
    q4_0, q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
    for tensor in reader.tensors:
        data, dtype = tensor.data, tensor.tensor_type
        if dtype == q4_1:
            data, dtype = gguf.quantize(gguf.dequantize(data, q4_1), q4_0), q4_0
        writer.add_tensor(tensor.name, data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target
