"""Engine folders as `trtllm-build` leaves them, with an engine that the Session of `tests/fakes` runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

LIMITS = {"max_batch_size": 8, "max_seq_len": 256, "max_num_tokens": 512, "max_draft_len": 7}
TOKENS_PER_BLOCK = 16


def write_engine(
    folder: Path, checkpoint: Path, captured: Sequence[int] = (), wrong: dict[str, Any] | None = None, **limits: int
) -> Path:
    """An engine of a checkpoint. wrong: in what its tensors differ from the contract. limits: over LIMITS."""
    model = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    config = {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float32",
            "logits_dtype": "float32",
            "vocab_size": model.vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_key_value_heads,
            "head_size": getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            **LIMITS,
            **limits,
            "max_beam_width": 1,
            "plugin_config": {"tokens_per_block": TOKENS_PER_BLOCK, "use_paged_context_fmha": True},
        },
    }
    engine = {"checkpoint": str(checkpoint), "captured": list(captured), "config": config, "wrong": wrong or {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.engine").write_text(json.dumps(engine))
    return folder
