"""The weights of a Llama GGUF file as they are stored: integer codes with a scale and a zero point per block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from python_backend.checkpoints.checkpoint import CheckpointError
from python_backend.checkpoints.decoder import DecoderConfig
from python_backend.checkpoints.quantised import Blocks, Floats, Weight, pack

SUPPORTED = ("F32", "Q4_1", "Q8_0")


def read_gguf(file: Path, config: DecoderConfig) -> dict[str, Weight]:
    """Every weight by its Hugging Face name. Raises CheckpointError for an architecture or a type not supported."""
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama":
        raise CheckpointError(f"'{file}' holds a '{architecture}' model; supported in this format: llama")
    names = _names(config.layers)
    weights: dict[str, Weight] = {}
    for tensor in reader.tensors:
        weight = _read(file, tensor)
        if heads := _rotary_heads(tensor.name, config):
            weight = _half_split(weight, heads)
        weights[names[tensor.name]] = weight
    return weights


def q4_1(data: npt.NDArray[np.uint8]) -> Blocks:
    """Rows of blocks of 32: float16 scale, float16 minimum, 16 bytes of codes, low nibbles first."""
    blocks = data.reshape(len(data), -1, 20)
    scale, minimum = (_float16(blocks[..., at : at + 2]) for at in (0, 2))
    code = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
    flat = scale == 0  # the whole block equals its minimum: (1 - 0) * minimum
    code[flat[..., 0]] = 1
    zero = np.where(flat, 0, -minimum / np.where(flat, 1, scale)).astype(np.float32)
    return Blocks(pack(code), np.where(flat, minimum, scale), zero)


def q8_0(data: npt.NDArray[np.uint8]) -> Blocks:
    """Rows of blocks of 32: float16 scale, 32 signed codes."""
    blocks = data.reshape(len(data), -1, 34)
    return Blocks(np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _float16(blocks[..., :2]), None)


def _read(file: Path, tensor: gguf.ReaderTensor) -> Weight:
    kind = tensor.tensor_type.name
    if kind == "Q4_1":
        return q4_1(np.asarray(tensor.data))
    if kind == "Q8_0":
        return q8_0(np.asarray(tensor.data))
    if kind == "F32":
        return np.array(tensor.data, dtype=np.float32)
    raise CheckpointError(f"'{file}' stores '{tensor.name}' as {kind}; supported: {', '.join(SUPPORTED)}")


def _names(layers: int) -> dict[str, str]:
    """GGUF name -> Hugging Face name."""
    parts = [f"model.layers.{i}.{part}" for i in range(layers) for part in _LAYER_PARTS]
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    names = [f"{part}.weight" for part in ("model.embed_tokens", "model.norm", "lm_head", *parts)]
    return {str(table.get_name(name, try_suffixes=(".weight",))): name for name in names}


_LAYER_PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "o")),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)


def _rotary_heads(name: str, config: DecoderConfig) -> int:
    """Heads of a projection whose outputs are rotated; 0 for any other tensor."""
    if name.endswith("attn_q.weight"):
        return config.heads
    return config.kv_heads if name.endswith("attn_k.weight") else 0


def _half_split(weight: Weight, heads: int) -> Weight:
    """Reorder the outputs of each head: GGUF pairs neighbours for the rotation, Hugging Face pairs the two halves."""
    if not isinstance(weight, Blocks):
        return _reorder(weight, heads)
    zero = None if weight.zero is None else _reorder(weight.zero, heads)
    return Blocks(_reorder(weight.code, heads), _reorder(weight.scale, heads), zero)


def _reorder(rows: Any, heads: int) -> Any:
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _float16(pairs: npt.NDArray[np.uint8]) -> Floats:
    return np.ascontiguousarray(pairs).view(np.float16).astype(np.float32)
