"""Small random targets, and steps written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part, TargetStep
from python_backend.settings import CoordinatorSettings, TargetSettings

VOCABULARY = 300
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # far from uniform, so that a wrong row or position shows
    "bos_token_id": None,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {  # as both releases of transformers take it, beside rope_theta
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama3": lambda: LlamaForCausalLM(_llama3()),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False)),
    "qwen3_moe": lambda: _qwen3_moe(norm_topk_prob=True),
    "qwen3_moe, some layers": lambda: _qwen3_moe(norm_topk_prob=False, mlp_only_layers=[1]),
}


DENSE = [kind for kind in MODELS if not kind.startswith("qwen3_moe")]


def _llama3() -> LlamaConfig:
    return LlamaConfig(**SHAPE, tie_word_embeddings=False, rope_theta=10000.0, rope_scaling=LLAMA3_ROPE)


def _qwen3_moe(**more: Any) -> Any:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS, **more, head_dim=16, tie_word_embeddings=False))


def save_tiny(kind: str, folder: Path) -> Path:
    """A random model of a kind in MODELS, as a Hugging Face folder without tokenizer."""
    torch.manual_seed(3)
    model = MODELS[kind]()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # they start as ones and zeros, which hide a missing use
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(folder)
    return folder


def load_engine(folder: Path, slots: int = 8, max_length: int = 256, **target: Any) -> TorchEngine:
    """The engine under test, alone."""
    return TorchEngine(
        folder,
        TargetSettings(checkpoint=str(folder), **target),
        CoordinatorSettings(max_sequences=slots, max_length=max_length),
    )


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same checkpoint in transformers."""
    config = AutoConfig.from_pretrained(folder)
    if not hasattr(type(config), "standardize_rope_params") and hasattr(config, "rope_parameters"):
        scaling = config.rope_parameters  # of a file that 5 wrote; 4.57 computes with its own default, and is wrong
        config.rope_theta, config.rope_scaling = scaling["rope_theta"], scaling
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype).eval()


def make_step(*parts: Part, **columns: Any) -> TargetStep:
    """A step of these sequences, argmax unless columns say otherwise."""
    return TargetStep.of(parts, **columns)
