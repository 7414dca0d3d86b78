"""Stand-ins for the parts of `tensorrt_llm` that a target network is made of. They compute nothing but shapes.

`Network` records the outputs and rejects one with a wrong name, shape or dtype, or the same one twice. What each class
does was read where `trtllm_engines/stubs` says; a test compares the signatures with the stubs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

ROWS, LOGIT_ROWS = 11, 5  # T packed rows of a pass, and those that need logits: never the same by accident


class NetworkError(AssertionError):
    """What TensorRT, or our runtime, would trip over."""


@dataclass
class Network:
    """Outputs in the order in which they were marked."""

    expected: dict[str, tuple[tuple[int, ...], str]]
    outputs: list[str] = field(default_factory=list)

    def mark(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        if name not in self.expected:
            raise NetworkError(f"output '{name}' is not in the contract: {', '.join(self.expected)}")
        if name in self.outputs:
            raise NetworkError(f"output '{name}' is marked twice")
        if (shape, dtype) != self.expected[name]:
            raise NetworkError(f"output '{name}' is {dtype} {shape}, expected {self.expected[name]}")
        self.outputs.append(name)

    def complete(self) -> None:
        if missing := [name for name in self.expected if name not in self.outputs]:
            raise NetworkError(f"outputs not marked: {', '.join(missing)}")


class Tensor:
    def __init__(self, network: Network, shape: tuple[int, ...]) -> None:
        self.network = network
        self.shape = shape

    def mark_output(self, name: str | None = None, dtype: str | None = None) -> None:
        self.network.mark(str(name), self.shape, str(dtype))


class Module:
    def __init__(self) -> None:
        pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class ModuleList(Module):
    def __init__(self, modules: Sequence[Module]) -> None:
        super().__init__()
        self.modules = list(modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, idx: int) -> Module:
        return self.modules[idx]


class PretrainedConfig(SimpleNamespace):
    """Any key of config.json becomes an attribute, as upstream."""

    network: Network
    fused: bool  # builds with --reduce_fusion enable
    paged: bool


class _Layer(Module):
    def __init__(self, config: PretrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx

    def _run(self, hidden_states: Tensor, use_cache: bool) -> Any:
        out: Any = Tensor(self.config.network, hidden_states.shape)
        if self.config.fused and self.layer_idx < self.config.num_hidden_layers - 1:
            out = (out, Tensor(self.config.network, hidden_states.shape))
        return (out, "present") if use_cache else out


class LLaMADecoderLayer(_Layer):
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
    ) -> Any:
        return self._run(hidden_states, use_cache)


class QWenDecoderLayer(_Layer):
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
    ) -> Any:
        return self._run(hidden_states, use_cache)


class DecoderLayerList(ModuleList):
    def __init__(self, cls: type[Module], config: PretrainedConfig) -> None:
        super().__init__([cls(config, i) for i in range(config.num_hidden_layers)])  # type: ignore[call-arg]

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
    ) -> Any:
        presents = []
        for layer in self.modules:
            hidden_states = layer(
                hidden_states,
                use_cache=use_cache,
                attention_mask=attention_mask,
                kv_cache_params=kv_cache_params,
                attention_params=attention_params,
            )
            if use_cache:
                hidden_states, present = hidden_states
                presents.append(present)
        return (hidden_states, presents) if use_cache else hidden_states


class _Transformer(Module):
    def __init__(self, layer: type[Module], config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = DecoderLayerList(layer, config)

    def forward(self, *, input_ids: Tensor, use_cache: bool, **kwargs: Any) -> Any:
        hidden = Tensor(self.config.network, (*input_ids.shape, self.config.hidden_size))
        hidden, presents = self.layers.forward(hidden, use_cache=use_cache)
        return Tensor(self.config.network, hidden.shape), presents  # after the final norm


class DecoderModelForCausalLM(Module):
    def __init__(self, config: PretrainedConfig, transformer: Module, lm_head: Module) -> None:
        super().__init__()
        self.config = config
        self.transformer = transformer
        self.lm_head = lm_head

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
    ) -> Any:
        every, presents = self.transformer.forward(input_ids=input_ids, use_cache=use_cache)
        gathered = Tensor(self.config.network, (*last_token_ids.shape, self.config.hidden_size))
        logits = Tensor(self.config.network, (*last_token_ids.shape, self.config.vocab_size))
        logits.mark_output("logits", self.config.logits_dtype)
        if not self.config.paged:
            return [logits, presents, gathered]
        return logits, gathered, every


class LLaMAForCausalLM(DecoderModelForCausalLM):
    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config, _Transformer(LLaMADecoderLayer, config), Module())


class QWenForCausalLM(DecoderModelForCausalLM):
    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config, _Transformer(QWenDecoderLayer, config), Module())


@contextmanager
def installed() -> Iterator[None]:
    """Makes `import tensorrt_llm` find the stand-ins."""
    contents = {
        "tensorrt_llm": {},
        "tensorrt_llm.functional": {"Tensor": Tensor},
        "tensorrt_llm.models": {
            "LLaMAForCausalLM": LLaMAForCausalLM,
            "QWenForCausalLM": QWenForCausalLM,
            "PretrainedConfig": PretrainedConfig,
        },
        "tensorrt_llm.models.llama": {},
        "tensorrt_llm.models.llama.model": {"LLaMADecoderLayer": LLaMADecoderLayer},
        "tensorrt_llm.models.modeling_utils": {"DecoderLayerList": DecoderLayerList},
        "tensorrt_llm.models.qwen": {},
        "tensorrt_llm.models.qwen.model": {"QWenDecoderLayer": QWenDecoderLayer},
    }
    modules = {}
    for name, members in contents.items():
        modules[name] = ModuleType(name)
        modules[name].__dict__.update(members)
    with patch.dict(sys.modules, modules):
        yield
