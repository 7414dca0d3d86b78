# Read from tensorrt_llm/models/qwen/model.py of NVIDIA/TensorRT-LLM, the version that knows qwen3 and qwen3_moe.
from typing import Any

from ...module import Module
from ..modeling_utils import DecoderModelForCausalLM, PretrainedConfig

class QWenDecoderLayer(Module):
    config: PretrainedConfig
    layer_idx: int
    def __init__(self, config: PretrainedConfig, layer_idx: int) -> None: ...
    # (hidden, KV) where use_cache.
    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any = None,
        use_cache: bool = False,
        spec_decoding_params: Any = None,
        kv_cache_params: Any = None,
        attention_params: Any = None,
        lora_layer_params: Any = None,
        mrope_params: Any = None,
    ) -> Any: ...

class QWenForCausalLM(DecoderModelForCausalLM):
    def __init__(self, config: PretrainedConfig) -> None: ...
