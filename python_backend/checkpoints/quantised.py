"""Block-quantised weights: integer codes with a scale and a zero point per block, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

Floats = npt.NDArray[np.float32]

FILE = Path("quantised", "model.safetensors")  # below the checkpoint folder, whose own weights it equals


@dataclass(frozen=True, eq=False)
class Blocks:
    """A matrix [out, in]: weight = (code - zero) * scale, with one zero and one scale per group of inputs."""

    code: npt.NDArray[np.uint8] | npt.NDArray[np.int8]  # int8 [out, groups, group]; uint8: two 4-bit codes, low first
    scale: Floats  # [out, groups, 1]
    zero: Floats | None  # [out, groups, 1], not an integer in general; None = 0

    def dense(self) -> Floats:
        """[out, in]"""
        code = self.code
        if code.dtype == np.uint8:
            code = np.stack([code & 15, code >> 4], axis=-1).reshape(*code.shape[:-1], -1)
        shifted = code if self.zero is None else code - self.zero
        return np.asarray(shifted * self.scale, dtype=np.float32).reshape(len(code), -1)


Weight = Floats | Blocks


def pack(code: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two 4-bit codes a byte along the last axis."""
    return np.asarray(code[..., 0::2] | (code[..., 1::2] << 4), dtype=np.uint8)


def save(folder: Path, weights: dict[str, Weight]) -> None:
    """Write all weights below a checkpoint folder."""
    parts: dict[str, npt.NDArray[np.generic]] = {}
    for name, weight in weights.items():
        if isinstance(weight, Blocks):
            parts[name + ":code"], parts[name + ":scale"] = weight.code, weight.scale
            if weight.zero is not None:
                parts[name + ":zero"] = weight.zero
        else:
            parts[name + ":float"] = weight
    file = folder / FILE
    file.parent.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(part) for name, part in parts.items()}, file)
    file.chmod(0o644)  # written as private


def load(folder: Path) -> dict[str, Weight]:
    """What `save` wrote."""
    parts = load_file(folder / FILE)
    weights: dict[str, Weight] = {}
    for part, values in parts.items():
        name, _, kind = part.rpartition(":")
        if kind == "float":
            weights[name] = values
        elif kind == "code":
            weights[name] = Blocks(values, parts[name + ":scale"], parts.get(name + ":zero"))
    return weights
