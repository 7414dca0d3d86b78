# Read from tensorrt_llm/models/llama/model.py of NVIDIA/TensorRT-LLM.
from typing import Any

from ...module import Module
from ..modeling_utils import DecoderModelForCausalLM, PretrainedConfig

class LLaMADecoderLayer(Module):
    config: PretrainedConfig
    layer_idx: int
    def __init__(self, config: PretrainedConfig, layer_idx: int) -> None: ...
    # (hidden, KV) where use_cache; hidden is a pair with reduce_fusion or norm_quant_fusion.
    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any = None,
        use_cache: bool = False,
        spec_decoding_params: Any = None,
        kv_cache_params: Any = None,
        attention_params: Any = None,
        lora_layer_params: Any = None,
        next_layer_input_layernorm_args: Any = None,
    ) -> Any: ...

class LLaMAForCausalLM(DecoderModelForCausalLM):
    def __init__(self, config: PretrainedConfig) -> None: ...
