"""Shape and weights of a Llama- or Qwen-style decoder, read from a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from python_backend.checkpoints.checkpoint import CheckpointError, weight_files
from python_backend.checkpoints.rope import rope

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the feed-forward network of some layers."""

    number: int
    per_token: int  # that a row passes
    width: int  # of one expert
    renormalise: bool  # weights of the chosen sum to one (`norm_topk_prob`)
    layers: tuple[int, ...]  # that have it


@dataclass(frozen=True, eq=False)
class DecoderConfig:
    """Shape of a Llama- or Qwen-style decoder."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int  # of plain layers; with experts also the width that its drafters have
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    tied_head: bool
    max_position: int
    rope_frequencies: Tensor  # [head_dim / 2] float32, radians per position
    rope_scale: float  # factor on cos and sin
    experts: Experts | None = None

    def experts_of(self, layer: int) -> Experts | None:
        """None where the layer has a plain network."""
        return self.experts if self.experts and layer in self.experts.layers else None


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
    frequencies, scale = rope(config, head_dim)
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
        experts=_experts(config) if config.model_type == "qwen3_moe" else None,
    )


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by name, mapped from the files: memory is used when a tensor is read."""
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= load_file(file)
    return weights


def _experts(config: Any) -> Experts | None:
    """As transformers places them: every `decoder_sparse_step` layers, but for those of `mlp_only_layers`."""
    layers = tuple(
        i
        for i in range(config.num_hidden_layers)
        if (i + 1) % config.decoder_sparse_step == 0 and i not in config.mlp_only_layers
    )
    if not layers or not config.num_experts:
        return None
    return Experts(
        number=config.num_experts,
        per_token=config.num_experts_per_tok,
        width=config.moe_intermediate_size,
        renormalise=config.norm_topk_prob,
        layers=layers,
    )
