"""A Llama- or Qwen-style decoder as an OpenVINO graph over ragged rows and a KV cache in blocks."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from python_backend.checkpoints.decoder import DecoderConfig
from python_backend.engines.openvino_attention import PagedInputs, cache_parameters, paged_attention, parameter
from python_backend.engines.openvino_ops import Node, Rotation, halves, integers, norm, result
from python_backend.engines.openvino_weights import Weights, matrix_node

TOKEN_IDS, POSITIONS, LOGIT_ROWS = "token_ids", "positions", "logit_rows"
ATTENTION_ROWS, ANSWER_ROWS = "attention_rows", "answer_rows"
LOGITS, FEATURES = "logits", "features"


def build_graph(
    config: DecoderConfig, weights: Weights, capture: tuple[int, ...], positions: int, spread: bool
) -> ov.Model:
    """The network. Weights are consumed: a tensor that no layer uses is an error.

    capture: decoder layers whose residual stream is kept, as it is after the layer; the number of layers means the
    final norm's output. positions: the longest sequence. spread: attention has rows of its own.

    Inputs, int64: token_ids [R], positions [A], logit_rows [N]; those of `PagedInputs`; the caches. With `spread` also
    attention_rows [A], the row that each row of attention repeats, and answer_rows [R], where each row's answer is;
    otherwise A = R. Outputs: logits [N, vocabulary] of the rows asked for; features [R, len(capture) * hidden] where
    something is captured.
    """
    token_ids, position, logit_rows = (parameter(n, np.int64, [-1]) for n in (TOKEN_IDS, POSITIONS, LOGIT_ROWS))
    paged = PagedInputs.create()
    parameters = [token_ids, position, logit_rows, *paged.parameters()]
    rotate = _rotation(config, position, positions)
    spreads: list[Node] = [parameter(n, np.int64, [-1]) for n in (ATTENTION_ROWS, ANSWER_ROWS)] if spread else []
    parameters += spreads

    embedding = matrix_node([weights.take("model.embed_tokens.weight")])
    hidden = ops.gather(embedding, token_ids, integers(0))
    kept: dict[int, Node] = {}
    for i in range(config.layers):
        prefix = f"model.layers.{i}."
        caches = cache_parameters(i, config)
        parameters += caches
        hidden = ops.add(hidden, _attention(config, weights, prefix, hidden, rotate, caches, paged, spreads))
        hidden = ops.add(hidden, _mlp(config, weights, prefix, hidden))
        kept[i] = hidden
    hidden = norm(hidden, weights.vector("model.norm.weight"), config.norm_epsilon)
    kept[config.layers] = hidden
    head = embedding if config.tied_head else weights.matrix("lm_head")
    weights.finish()

    results = [result(LOGITS, ops.matmul(ops.gather(hidden, logit_rows, integers(0)), head, False, True))]
    if capture:
        results.append(result(FEATURES, ops.concat([kept[i] for i in capture], 1)))
    return ov.Model(results, parameters, "decoder")


def _attention(
    config: DecoderConfig,
    weights: Weights,
    prefix: str,
    hidden: Node,
    rotate: Rotation,
    caches: list[Node],
    paged: PagedInputs,
    spreads: list[Node],
) -> Node:
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    names = [f"{prefix}self_attn.{part}_proj" for part in ("q", "k", "v")]
    rows = _linear(
        weights, norm(hidden, weights.vector(prefix + "input_layernorm.weight"), config.norm_epsilon), *names
    )
    if spreads:
        rows = ops.gather(rows, spreads[0], integers(0))
    rotated, value = halves(rows, (heads + kv_heads) * head_dim, kv_heads * head_dim)
    rotated = ops.reshape(rotated, integers(-1, heads + kv_heads, head_dim), False)
    query_norm = weights.optional_vector(prefix + "self_attn.q_norm.weight")
    key_norm = weights.optional_vector(prefix + "self_attn.k_norm.weight")
    if query_norm is not None and key_norm is not None:
        rotated = norm(rotated, np.stack([query_norm] * heads + [key_norm] * kv_heads), config.norm_epsilon)
    query, key = halves(rotate(rotated), heads, kv_heads)
    query = ops.reshape(query, integers(-1, heads * head_dim), False)
    key = ops.reshape(key, integers(-1, kv_heads * head_dim), False)
    answer = ops.reshape(
        paged_attention(query, key, value, caches, paged, config), integers(-1, heads * head_dim), False
    )
    if spreads:
        answer = ops.gather(answer, spreads[1], integers(0))
    return _linear(weights, answer, prefix + "self_attn.o_proj")


def _mlp(config: DecoderConfig, weights: Weights, prefix: str, hidden: Node) -> Node:
    rows = norm(hidden, weights.vector(prefix + "post_attention_layernorm.weight"), config.norm_epsilon)
    both = _linear(weights, rows, prefix + "mlp.gate_proj", prefix + "mlp.up_proj")
    gate, up = halves(both, config.intermediate_size, config.intermediate_size)
    return _linear(weights, ops.multiply(ops.swish(gate), up), prefix + "mlp.down_proj")


def _rotation(config: DecoderConfig, position: Node, positions: int) -> Rotation:
    angles = np.arange(positions, dtype=np.float32)[:, None] * config.rope_frequencies.numpy()
    cos, sin = np.cos(angles) * config.rope_scale, np.sin(angles) * config.rope_scale
    return Rotation(np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1), position)


def _linear(weights: Weights, x: Node, *names: str) -> Node:
    """One layer from projections that read the same rows."""
    answer = ops.matmul(x, weights.matrix(*names), False, True)
    bias = weights.bias(*names)
    return answer if bias is None else ops.add(answer, ops.constant(bias))
