"""Weights as OpenVINO constants. The CPU plugin keeps integer codes packed and expands them inside the matmul.

Two modes of `target.quantization`. `exact`: what the checkpoint stores, 4-bit codes or floats, in float32 arithmetic.
`int8-dynamic`: every matrix rounded to 8 bits per output, and activations to 8 bits too where the CPU has VNNI: another
model, close to the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from python_backend.checkpoints import quantised
from python_backend.checkpoints.checkpoint import RECORD, CheckpointError
from python_backend.checkpoints.decoder import load_weights
from python_backend.checkpoints.quantised import Blocks, Floats, Weight
from python_backend.settings import Quantization

Node = Any  # openvino's Node and Output, which its operators take alike


def read_weights(folder: Path, mode: Quantization) -> dict[str, Weight]:
    """Every weight of the checkpoint by its Hugging Face name. mode: in effect, not `auto`.

    Raises CheckpointError where the folder was converted from quantised weights that are not there.
    """
    if mode == "exact" and _is_quantised(folder):
        return quantised.load(folder)
    weights: dict[str, Weight] = {}
    for name, tensor in load_weights(folder).items():
        values: Floats = tensor.float().numpy()
        weights[name] = to_int8(values) if mode == "int8-dynamic" and values.ndim == 2 else values
    return weights


def _is_quantised(folder: Path) -> bool:
    """Whether the checkpoint's weights were stored as codes, which are then kept below it."""
    if (folder / quantised.FILE).is_file():
        return True
    record = json.loads((folder / RECORD).read_text()) if (folder / RECORD).is_file() else {}
    if "source" in record:
        raise CheckpointError(
            f"'{folder / quantised.FILE}' is missing: the 4-bit weights of '{record['source']}'; "
            "run `python -m build_scripts.fetch_model --force`"
        )
    return False


def to_int8(matrix: Floats) -> Blocks:
    """Round each output to signed 8 bits, symmetrically."""
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), np.float32(1e-30)) / np.float32(127)
    return Blocks(np.round(matrix / scale).astype(np.int8)[:, None], scale[:, None], None)


class Weights:
    """Hands out weights by name as graph nodes, and knows which were not asked for."""

    def __init__(self, weights: dict[str, Weight]) -> None:
        self.weights = dict(weights)

    def take(self, name: str) -> Weight:
        if name not in self.weights:
            raise CheckpointError(f"the checkpoint has no tensor '{name}'")
        return self.weights.pop(name)

    def vector(self, name: str) -> Floats:
        weight = self.take(name)
        assert not isinstance(weight, Blocks)  # vectors are never quantised
        return weight

    def optional_vector(self, name: str) -> Floats | None:
        return self.vector(name) if name in self.weights else None

    def matrix(self, *names: str) -> Node:
        """[out, in] float32 from projections that read the same rows, stacked."""
        return matrix_node([self.take(f"{name}.weight") for name in names])

    def bias(self, *names: str) -> Floats | None:
        """[out] of the same projections, None where they have none."""
        present = [bias for name in names if (bias := self.optional_vector(f"{name}.bias")) is not None]
        if present and len(present) < len(names):
            raise CheckpointError(f"the checkpoint has a bias for some of {names}, not for all")
        return np.concatenate(present) if present else None

    def finish(self) -> None:
        """Raise CheckpointError where a weight was not used."""
        unused = [n for n in self.weights if not n.endswith("rotary_emb.inv_freq") and n != "lm_head.weight"]
        if unused:
            raise CheckpointError(f"the checkpoint has {len(unused)} tensors that are not used, as '{unused[0]}'")


def matrix_node(parts: list[Weight]) -> Node:
    """[out, in] float32 of matrices with the same inputs, stacked along the outputs."""
    blocks = [part for part in parts if isinstance(part, Blocks)]
    if not blocks:
        return ops.constant(np.concatenate([part for part in parts if not isinstance(part, Blocks)]))
    if len(blocks) < len(parts):
        raise CheckpointError("matrices that read the same rows are stored partly as floats, partly quantised")
    code = np.concatenate([part.code for part in blocks])
    scale = np.concatenate([part.scale for part in blocks])
    out, groups, _ = code.shape
    if groups == 1:
        code, scale = code[:, 0], scale[:, 0]
    node = ops.convert(_codes(code), "f32")
    zeros = [part.zero for part in blocks if part.zero is not None]
    if zeros:
        node = ops.subtract(node, ops.constant(np.concatenate(zeros)))
    node = ops.multiply(node, ops.constant(scale))
    return node if groups == 1 else ops.reshape(node, ops.constant(np.array([out, -1], np.int64)), False)


def _codes(code: Any) -> Node:
    """A constant of signed 8-bit or packed unsigned 4-bit codes."""
    if code.dtype == np.int8:
        return ops.constant(code)
    packed = ov.Tensor(ov.Type.u4, ov.Shape([*code.shape[:-1], 2 * code.shape[-1]]))
    packed.data[:] = code.reshape(-1)
    return ov.op.Constant(packed, shared_memory=True)
