"""What a built engine says of itself: `config.json` beside `rank0.engine`, as `trtllm-build` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from python_backend.engine import EngineError
from trtllm_engines.pin import TENSORRT_LLM

CONFIG = "config.json"


@dataclass(frozen=True)
class EngineConfig:
    """Shape and limits of one rank of an engine. Sizes are counts of elements."""

    dtype: str  # of hidden states, torch's name
    logits_dtype: str
    kv_dtype: str
    vocabulary: int  # without the padding of the head
    hidden: int
    layers: int
    kv_heads: int  # of this rank
    head_dim: int
    tensor_parallel: int
    tokens_per_block: int
    max_sequences: int
    max_length: int
    max_rows: int
    max_drafts: int  # of a sequence and pass

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_length // self.tokens_per_block)

    @property
    def max_logit_rows(self) -> int:
        return self.max_sequences * (self.max_drafts + 1)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises EngineError where the folder holds no engine, or one of another release."""
        file = folder / CONFIG
        if not file.is_file():
            raise EngineError(f"'{folder}' holds no {CONFIG}: build the engine with `make engines`")
        config = json.loads(file.read_text())
        if config["version"] != TENSORRT_LLM:
            raise EngineError(
                f"'{folder}' was built by TensorRT-LLM {config['version']}, expected {TENSORRT_LLM}: build it again"
            )
        try:
            return cls._of(config["pretrained_config"], config["build_config"])
        except KeyError as error:
            raise EngineError(f"'{file}' has no {error}: build the engine again") from error

    @classmethod
    def _of(cls, model: dict[str, Any], build: dict[str, Any]) -> Self:
        tensor_parallel = model["mapping"]["tp_size"]
        head_dim = model.get("head_size") or model["hidden_size"] // model["num_attention_heads"]
        quantised_kv = (model.get("quantization") or {}).get("kv_cache_quant_algo")
        return cls(
            dtype=model["dtype"],
            logits_dtype=model["logits_dtype"],
            kv_dtype="float8_e4m3fn" if quantised_kv == "FP8" else model["dtype"],
            vocabulary=model["vocab_size"],
            hidden=model["hidden_size"],
            layers=model["num_hidden_layers"],
            kv_heads=-(-model["num_key_value_heads"] // tensor_parallel),
            head_dim=head_dim,
            tensor_parallel=tensor_parallel,
            tokens_per_block=build["plugin_config"]["tokens_per_block"],
            max_sequences=build["max_batch_size"],
            max_length=build["max_seq_len"],
            max_rows=build["max_num_tokens"],
            max_drafts=build["max_draft_len"],
        )
