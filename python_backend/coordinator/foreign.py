"""Inputs of TensorRT-LLM's backend that have no counterpart here: off-values pass, on-values are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Foreign(NamedTuple):
    """why: "" where any value is right. zero_is_off: whether a tensor of zeros is as good as none."""

    why: str
    zero_is_off: bool = True


_LOGITS = "logits are not returned; return_log_probs gives the log probabilities of the output"
_PICTURES = "the target reads text only"
_TUNING = "there are no prompt tables"
_LORA = "there are no LoRA adapters"
_GUIDED = "there is no guided decoding"
_BIAS = "tokens cannot be biased; bad_words forbids some"

FOREIGN: Mapping[str, Foreign] = {
    "use_draft_logits": Foreign(""),
    "return_kv_cache_reuse_stats": Foreign(""),
    "return_context_logits": Foreign(_LOGITS),
    "return_generation_logits": Foreign(_LOGITS),
    "decoder_text_input": Foreign("the target has no encoder; the prompt belongs into text_input"),
    "image_input": Foreign(_PICTURES, zero_is_off=False),
    "image_bytes_input": Foreign(_PICTURES, zero_is_off=False),
    "image_url_input": Foreign(_PICTURES),
    "image_sizes_input": Foreign(_PICTURES),
    "video_bytes_input": Foreign(_PICTURES, zero_is_off=False),
    "prompt_embedding_table": Foreign(_TUNING, zero_is_off=False),
    "prompt_vocab_size": Foreign(_TUNING),
    "prompt_table_extra_id": Foreign(_TUNING),
    "embedding_bias_words": Foreign(_BIAS),
    "embedding_bias_weights": Foreign(_BIAS),
    "lora_task_id": Foreign(_LORA),
    "lora_weights": Foreign(_LORA, zero_is_off=False),
    "lora_config": Foreign(_LORA, zero_is_off=False),
    "guided_decoding_guide_type": Foreign(_GUIDED),
    "guided_decoding_guide": Foreign(_GUIDED),
}


def complaint(name: str, value: Any) -> str:
    """Why this value of a foreign input, a tensor or a request parameter, cannot be served; "" where it can."""
    rule, values = FOREIGN[name], np.asarray(value)
    if not rule.why or not values.size or (rule.zero_is_off and all(map(_is_off, values.reshape(-1)))):
        return ""
    shown = f"a tensor {list(values.shape)}" if values.size > 1 else repr(values.reshape(-1)[0])[:80]
    off = "leave it out, or send it empty" if not rule.zero_is_off or values.dtype.kind in "OSU" else "send 0"
    return f"{name} is {shown}: {rule.why}; {off}"


def _is_off(value: Any) -> bool:
    return value in (0, -1, b"", "", None)
