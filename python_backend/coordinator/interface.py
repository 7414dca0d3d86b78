"""Every input and output of the models that clients call: one table, from which the configurations and
docs/interface.md are written (`python -m build_scripts.write_configs`).

Names, types and dimensions are those of the models `ensemble` and `tensorrt_llm_bls` of TensorRT-LLM's backend, so
that its clients work unchanged; what only we have stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from python_backend.protocol import Array, Tensors

Dims = tuple[int, ...]

OFF = "off"  # default of what must stay off
NUMPY_TYPES: dict[str, Any] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
}


class Input(NamedTuple):
    """dims: without the batch axis."""

    name: str
    type: str
    default: str
    meaning: str
    dims: Dims = (1,)


class Output(NamedTuple):
    """dims: without the batch axis, as the configuration has them. batched: whether a batched model's tensor has that
    axis; text and tokens have none, for TensorRT-LLM's own postprocessing leaves it out and clients rely on it."""

    name: str
    type: str
    when: str
    dims: Dims = (1,)
    batched: bool = True


def _image(name: str, type_: str, dims: Dims) -> Input:
    return Input(name, type_, OFF, "pictures and videos: refused unless empty", dims)


def _logits(of: str) -> Input:
    return Input(f"return_{of}_logits", "BOOL", "false", f"true is refused; the output `{of}_logits` is 0")


ANY = (-1,)
INPUTS = (
    Input("text_input", "STRING", "", "prompt as it is"),
    Input(
        "messages",
        "STRING",
        "",
        'JSON list of chat turns `{"role", "content"}`, rendered with the model\'s chat template',
    ),
    Input("input_ids", "INT32", "", "prompt tokens", ANY),
    Input("max_tokens", "INT32", "256", "cut to what fits the context"),
    Input("max_completion_tokens", "INT32", "", "alias of `max_tokens` that wins"),
    Input("stream", "BOOL", "false", "many responses instead of one"),
    Input("temperature", "FP32", "0", "0 = argmax, and so is anything below 0.00001"),
    Input("top_k", "INT32", "0", "0 = off"),
    Input("top_p", "FP32", "0", "0 = off"),
    Input("min_p", "FP32", "0", "0 = off"),
    Input("seed", "UINT64", "random", "no effect at temperature 0"),
    Input("random_seed", "UINT64", "", "older name of `seed`"),
    Input("stop_words", "STRING", "", "the output ends before a stop word", ANY),
    Input("bad_words", "STRING", "", "what a bad word forbids is said below", ANY),
    Input("repetition_penalty", "FP32", "1", "over prompt and output"),
    Input("presence_penalty", "FP32", "0", "over the output"),
    Input("frequency_penalty", "FP32", "0", "over the output"),
    Input("length_penalty", "FP32", "1", "accepted, no effect: there is one beam"),
    Input("beam_width", "INT32", "1", "more than one beam is refused"),
    Input("num_return_sequences", "INT32", "1", "0 = 1; more than one is refused"),
    Input("min_tokens", "INT32", "0", "no end token before"),
    Input("min_length", "INT32", "", "older name of `min_tokens`"),
    Input("end_id", "INT32", "the model's", "-1 = no end token"),
    Input("pad_id", "INT32", "the model's", "accepted, no effect"),
    Input("return_log_probs", "BOOL", "false", "`output_log_probs`, `cum_log_probs`"),
    Input("return_perf_metrics", "BOOL", "false", "the four times; `kv_cache_*` stay 0"),
    Input("return_kv_cache_reuse_stats", "BOOL", "false", "older name of `return_perf_metrics`, without the times"),
    Input(
        "exclude_input_in_output",
        "BOOL",
        "true",
        "false = the prompt precedes the text, unless it is streamed, as in TensorRT-LLM",
    ),
    Input("return_num_input_tokens", "BOOL", "true", "accepted; the count always comes"),
    Input("return_num_output_tokens", "BOOL", "true", "accepted; the count always comes"),
    Input("num_draft_tokens", "INT32", "7", "deepest draft; 0 = plain decoding; cut to `coordinator.depth`"),
    Input("use_draft_logits", "BOOL", "false", "accepted, no effect: the output is the target's with either"),
    Input("workload", "STRING", "`auto`", "`chat`, `code`, `math`: which drafter; `auto` decides from the prompt"),
    Input("thinking", "BOOL", "false", "passed to the chat template"),
    Input("stop", "BOOL", "false", "cancels the request with the same request id"),
    _logits("context"),
    _logits("generation"),
    Input("decoder_text_input", "STRING", OFF, "encoder-decoder models: refused unless empty"),
    _image("image_input", "FP16", (-1, 3, -1, -1)),
    _image("image_bytes_input", "UINT8", (-1, -1, -1, -1)),
    _image("image_url_input", "STRING", (1,)),
    _image("image_sizes_input", "INT64", (-1, 2)),
    _image("video_bytes_input", "UINT8", (-1, -1, -1, -1)),
    Input("prompt_embedding_table", "FP16", OFF, "prompt tuning: refused unless empty", (-1, -1)),
    Input("prompt_vocab_size", "INT32", OFF, "prompt tuning: refused unless 0"),
    Input("prompt_table_extra_id", "UINT64", OFF, "prompt tuning: refused unless 0"),
    Input("embedding_bias_words", "STRING", OFF, "refused unless empty", ANY),
    Input("embedding_bias_weights", "FP32", OFF, "refused unless 0", ANY),
    Input("lora_task_id", "UINT64", OFF, "LoRA: refused unless 0"),
    Input("lora_weights", "FP16", OFF, "LoRA: refused unless empty", (-1, -1)),
    Input("lora_config", "INT32", OFF, "LoRA: refused unless empty", (-1, 3)),
    Input("guided_decoding_guide_type", "STRING", OFF, "guided decoding: refused unless empty"),
    Input("guided_decoding_guide", "STRING", OFF, "guided decoding: refused unless empty"),
)

LAST = "last response"
TIMES = f"{LAST}, with `return_perf_metrics`: nanoseconds of the server's steady clock"
ON_REQUEST = "only when requested by name: 0"
OUTPUTS = (
    Output("text_output", "STRING", "always, first; a delta while streaming", batched=False),
    Output("output_ids", "INT32", "always; a delta while streaming; without the end token", ANY, batched=False),
    Output("finish_reason", "STRING", f"`stop` or `length` in the {LAST}, empty before", batched=False),
    Output("batch_index", "INT32", "always 0: a request has one prompt"),
    Output("sequence_index", "INT32", "always 0: a request has one answer"),
    Output("num_input_tokens", "INT32", LAST),
    Output("num_output_tokens", "INT32", LAST),
    Output("cum_log_probs", "FP32", f"{LAST}, with `return_log_probs`", ANY),
    Output("output_log_probs", "FP32", f"{LAST}, with `return_log_probs`", (-1, -1)),
    Output(
        "speculation",
        "STRING",
        f"{LAST}: JSON with `mean_acceptance_length`, `num_drafts`, `num_draft_tokens`, `num_kept_tokens`, "
        "`num_accepted_tokens`, `acceptance_per_position`, `gain` over plain decoding by the cost table (or null), "
        "`workload`, `drafter`",
        batched=False,
    ),
    Output("acceptance_rate", "FP32", LAST),
    Output("total_accepted_draft_tokens", "INT32", LAST),
    Output("total_draft_tokens", "INT32", LAST),
    *(
        Output(f"{event}_time_ns", "INT64", TIMES)
        for event in ("arrival", "first_scheduled", "first_token", "last_token")
    ),
    Output("kv_cache_alloc_new_blocks", "INT32", ON_REQUEST),
    Output("kv_cache_reused_blocks", "INT32", ON_REQUEST),
    Output("kv_cache_alloc_total_blocks", "INT32", ON_REQUEST),
    Output("context_logits", "FP32", ON_REQUEST, (-1, -1)),
    Output("generation_logits", "FP32", ON_REQUEST, (-1, -1, -1)),
)
TABLE = {output.name: output for output in OUTPUTS}


def complete(outputs: Tensors, requested: Iterable[str], batched: bool) -> Tensors:
    """Every output in its model's shape. What was asked for by name and is not there is 0 or empty, as in
    TensorRT-LLM's backend: an ensemble fails where a step leaves out an output. Who names none, or all of them, gets
    what there is. Empty stays empty."""
    shaped = {name: _shaped(TABLE[name], array, batched) for name, array in outputs.items()}
    named = set(requested)
    missing = named - shaped.keys() if outputs and named < TABLE.keys() else set()
    return shaped | {name: _nothing(TABLE[name], batched) for name in TABLE if name in missing}


def _shaped(output: Output, array: Array, batched: bool) -> Array:
    rank = len(output.dims) + (batched and output.batched)
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _nothing(output: Output, batched: bool) -> Array:
    empty = b"" if output.type == "STRING" else 0
    length = 0 if output.name == "output_ids" else 1
    return _shaped(output, np.full(length, empty, dtype=NUMPY_TYPES[output.type]), batched)
