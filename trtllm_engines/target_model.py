"""Target networks that also give out hidden states: `trtllm-build --model_cls_file` loads this file by its path.

TensorRT-LLM's own Llama and Qwen networks, whose decoder layers mark their output where the checkpoint's config asks
for it (`captured_layers`, written there by `trtllm_engines.mark`), and whose last hidden state is marked after the
final norm and before the gather of the rows that need logits. So each output is [T, hidden] over all packed rows.

Imports TensorRT-LLM, so it can be imported nowhere but in its container; `stubs/` records what it uses of it. Not run
on hardware yet.
"""

from __future__ import annotations

from typing import Any

from tensorrt_llm.functional import Tensor
from tensorrt_llm.models import LLaMAForCausalLM, PretrainedConfig, QWenForCausalLM
from tensorrt_llm.models.llama.model import LLaMADecoderLayer
from tensorrt_llm.models.modeling_utils import DecoderLayerList
from tensorrt_llm.models.qwen.model import QWenDecoderLayer

from trtllm_engines.pin import CAPTURED, captured_name


class CapturingLlamaLayer(LLaMADecoderLayer):
    """A layer whose hidden states are an output of the engine where a drafter reads them."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        give_out(residual_stream(result), self.layer_idx, self.config)
        return result


class CapturingQwenLayer(QWenDecoderLayer):
    """The same for Qwen."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        give_out(residual_stream(result), self.layer_idx, self.config)
        return result


class CapturingLlama(LLaMAForCausalLM):
    """Llama with the layers above."""

    def __init__(self, config: PretrainedConfig) -> None:
        check(config)
        super().__init__(config)
        # Before the metaclass quantises and before weights are loaded; parameters hold no memory until then.
        self.transformer.layers = DecoderLayerList(CapturingLlamaLayer, config)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        give_out(all_rows(result), self.config.num_hidden_layers, self.config)
        return result


class CapturingQwen(QWenForCausalLM):
    """Qwen with the layers above."""

    def __init__(self, config: PretrainedConfig) -> None:
        check(config)
        super().__init__(config)
        self.transformer.layers = DecoderLayerList(CapturingQwenLayer, config)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        give_out(all_rows(result), self.config.num_hidden_layers, self.config)
        return result


def check(config: PretrainedConfig) -> None:
    """Raise ValueError where the checkpoint does not say what to capture, or is split into pipeline stages."""
    if not hasattr(config, CAPTURED):
        raise ValueError(f"the checkpoint's config.json has no '{CAPTURED}': run `make engines`, which writes it")
    if config.mapping.pp_size != 1:
        raise ValueError(f"pp_size is {config.mapping.pp_size}: hidden states are captured in one stage only, use 1")


def give_out(hidden: Tensor, layer: int, config: PretrainedConfig) -> None:
    """Mark the hidden states [T, hidden] of a layer as an output of the engine, if they are wanted."""
    if layer in getattr(config, CAPTURED):
        hidden.mark_output(captured_name(layer), config.dtype)


def residual_stream(result: Any) -> Tensor:
    """A decoder layer's hidden states, from what it returns: with its KV where a cache is used.

    Raises ValueError where the residual is still apart, which fusions of the all-reduce or of the norm do.
    """
    hidden = result[0] if isinstance(result, tuple) else result
    if isinstance(hidden, tuple):
        raise ValueError(
            "a layer's residual is fused into the next: build with --reduce_fusion and --norm_quant_fusion disable"
        )
    return hidden


def all_rows(result: Any) -> Tensor:
    """The last hidden state of all rows, from (logits, gathered rows, all rows) that the model returns.

    Raises ValueError where it returns something else, as it does without a paged KV cache.
    """
    if not (isinstance(result, tuple) and len(result) == 3):
        raise ValueError("the model returned no hidden states of all rows: build with --kv_cache_type paged")
    return result[2]
