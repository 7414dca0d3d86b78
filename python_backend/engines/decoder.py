"""Shape and weights of a Llama- or Qwen-style decoder, read from a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from python_backend.engines.checkpoint import CheckpointError, weight_files

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the sequence


@dataclass(frozen=True, eq=False)
class DecoderConfig:
    """Shape of a Llama- or Qwen-style decoder."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    tied_head: bool
    max_position: int
    rope_frequencies: Tensor  # [head_dim / 2] float32, radians per position
    rope_scale: float  # factor on cos and sin


def read_config(folder: Path) -> DecoderConfig:
    """Shape of the model. Raises CheckpointError naming what is not supported."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in FAMILIES:
        raise CheckpointError(f"'{folder}' is a '{config.model_type}' model; supported: {', '.join(FAMILIES)}")
    if config.hidden_act != "silu":
        raise CheckpointError(f"'{folder}' has the activation '{config.hidden_act}'; supported: silu")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise CheckpointError(f"'{folder}' uses sliding-window attention, which is not supported")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies, scale = _rope(config, head_dim)
    return DecoderConfig(
        vocabulary_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_epsilon=config.rms_norm_eps,
        tied_head=config.tie_word_embeddings,
        max_position=config.max_position_embeddings,
        rope_frequencies=frequencies,
        rope_scale=scale,
    )


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by name, mapped from the files: memory is used when a tensor is read."""
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= load_file(file)
    return weights


def _rope(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies [head_dim / 2] and the factor on cos and sin."""
    parameters = config.rope_parameters
    kind = parameters["rope_type"]
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"rope type is '{kind}'; supported: {', '.join(ROPE_TYPES)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"partial_rotary_factor is {parameters['partial_rotary_factor']}; supported: 1.0")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / parameters["rope_theta"] ** exponents, 1.0
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    return frequencies.float(), float(scale)
