"""What an engine runs on, in words that differ where its times may."""

from __future__ import annotations

import re
from pathlib import Path

import torch

DRIVER = Path("/proc/driver/nvidia/version")


def hardware_of(device: str) -> str:
    """Name, memory, processors and compute capability of a GPU, its driver and CUDA; "" for the CPU, which whoever
    asks can see himself."""
    if torch.device(device).type != "cuda":
        return ""
    gpu = torch.cuda.get_device_properties(torch.device(device))
    return (
        f"{gpu.name}, {gpu.total_memory >> 20} MiB, {gpu.multi_processor_count} SMs, sm_{gpu.major}{gpu.minor}, "
        f"driver {driver()}, CUDA {torch.version.cuda}"
    )


def driver() -> str:
    """Version of NVIDIA's kernel module, "unknown" where it does not say."""
    try:
        said = re.search(r"\d+\.\d+(\.\d+)*", DRIVER.read_text())
    except OSError:
        said = None
    return said.group() if said else "unknown"


def built(folder: Path, *files: str) -> str:
    """Of built engines in a folder: name, size and time of these files, which change when they are built again."""
    stats = {file: (folder / file).stat() for file in files}
    return ", ".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats.items())
