"""A sketch of a head: a product of low rank that says which tokens are worth the head's own rows.

To read the head is most of what a draft costs. Hidden states do not fill their space evenly, so a map of their common
directions keeps what tells the likeliest tokens apart: of all maps x -> up (down x) of a rank it has the smallest mean
square error of the logits over states with the second moment M = E[x x^T]. With S = M^(1/2) and the leading
eigenvectors V of S H^T H S, it is down = V^T S^(-1), up = H S V (Eckart and Young, 1936, of H S).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SKETCH = "sketch.safetensors"
RANK = 192
LEAST = 1e-6  # of the largest eigenvalue: directions that states hardly take


class Sketch(NamedTuple):
    """A head of low rank: logits are about `up @ down @ hidden`."""

    down: Tensor  # [rank, hidden]
    up: Tensor  # [Vd, rank]


def sketch_of(head: Tensor, moment: Tensor, rank: int = RANK) -> Sketch | None:
    """None where the head is as small. head: [Vd, hidden]. moment: [hidden, hidden] of the states that it reads."""
    if 2 * rank > head.shape[1]:
        return None
    values, vectors = torch.linalg.eigh(moment.double())
    values = values.clamp_min(float(values[-1]) * LEAST)
    root, inverse = ((vectors * v) @ vectors.T for v in (values.sqrt(), values.rsqrt()))
    seen = head.double() @ root
    _, leading = torch.linalg.eigh(seen.T @ seen)
    kept = leading[:, -rank:]
    return Sketch((kept.T @ inverse).float(), (seen @ kept).float())


def save_moment(folder: Path, moment: Tensor) -> None:
    """In float16, which its scale does not matter to: relative to the mean variance."""
    save_file({"moment": (moment / moment.diagonal().mean()).half().contiguous()}, folder / SKETCH)


def load_sketch(folder: Path, head: Tensor) -> Sketch | None:
    """None where the drafter was published without."""
    file = folder / SKETCH
    return sketch_of(head, load_file(file)["moment"].float()) if file.is_file() else None
