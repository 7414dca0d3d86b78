"""A SmolLM2 GGUF file as a Hugging Face folder: tokenizer, configuration, float32 safetensors, and the codes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from build_scripts.gguf_blocks import read_gguf
from python_backend.checkpoints import quantised
from python_backend.checkpoints.decoder import read_config


def save_tokenizer(source: Path, folder: Path) -> None:
    """Tokenizer and chat template. The GGUF loader leaves out that SmolLM2 splits digits before anything else."""
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.save_pretrained(folder)


def save_model(source: Path, folder: Path) -> None:
    """Configuration and dequantised weights, written by hand: `save_pretrained` refuses a model that came from GGUF."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = model.config
    del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id).save_pretrained(folder)
    tied = model._tied_weights_keys if config.tie_word_embeddings else ()
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name not in tied}
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # written as private


def save_codes(source: Path, folder: Path) -> None:
    """The same weights as 4-bit codes, for engines that compute on them. Needs the configuration of `save_model`."""
    quantised.save(folder, read_gguf(source, read_config(folder)))
