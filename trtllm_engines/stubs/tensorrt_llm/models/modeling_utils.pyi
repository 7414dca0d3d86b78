# Read from tensorrt_llm/models/modeling_utils.py of NVIDIA/TensorRT-LLM: PretrainedConfig, DecoderLayerList,
# DecoderModelForCausalLM. Keys of config.json that a config class does not know become attributes of it.
from typing import Any

from ..mapping import Mapping
from ..module import Module, ModuleList

class PretrainedConfig:
    architecture: str
    dtype: str
    logits_dtype: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    mapping: Mapping

class DecoderLayerList(ModuleList):
    def __init__(self, cls: type[Module], config: PretrainedConfig) -> None: ...
    def forward(
        self,
        hidden_states: Any,
        use_cache: bool = False,
        attention_mask: Any = None,
        kv_cache_params: Any = None,
        attention_params: Any = None,
        mrope_params: Any = None,
        position_ids: Any = None,
        lora_params: Any = None,
        spec_decoding_params: Any = None,
        vision_token_mask: Any = None,
    ) -> Any: ...

class Transformer(Module):
    # Not a class of its own upstream: what LLaMAModel and QWenModel have in common.
    layers: DecoderLayerList

class DecoderModelForCausalLM(Module):
    config: PretrainedConfig
    transformer: Transformer
    lm_head: Module
    def __init__(self, config: PretrainedConfig, transformer: Module, lm_head: Module) -> None: ...
    # With a paged KV cache, on the last pipeline rank: (logits, gathered rows, all rows).
    def forward(
        self,
        input_ids: Any,
        position_ids: Any = None,
        use_cache: bool = False,
        last_token_ids: Any = None,
        attention_mask: Any = None,
        kv_cache_params: Any = None,
        attention_params: Any = None,
        mrope_params: Any = None,
        hidden_states: Any = None,
        prompt_embedding_table: Any = None,
        prompt_tasks: Any = None,
        prompt_vocab_size: Any = None,
        lora_params: Any = None,
        spec_decoding_params: Any = None,
    ) -> Any: ...
