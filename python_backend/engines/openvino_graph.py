"""A Llama- or Qwen-style decoder as an OpenVINO graph over ragged rows and a KV cache in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from python_backend.engines.decoder import DecoderConfig
from python_backend.engines.openvino_attention import PagedInputs, cache_parameters, paged_attention, parameter
from python_backend.engines.openvino_weights import Weights, matrix_node
from python_backend.engines.quantised import Floats

TOKEN_IDS, POSITIONS, LOGIT_ROWS = "token_ids", "positions", "logit_rows"
ATTENTION_ROWS, ANSWER_ROWS = "attention_rows", "answer_rows"
LOGITS, FEATURES = "logits", "features"

Node = Any


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
    rotate = _Rotation(config, position, positions)
    spreads: list[Node] = [parameter(n, np.int64, [-1]) for n in (ATTENTION_ROWS, ANSWER_ROWS)] if spread else []
    parameters += spreads

    embedding = matrix_node([weights.take("model.embed_tokens.weight")])
    hidden = ops.gather(embedding, token_ids, _int(0))
    kept: dict[int, Node] = {}
    for i in range(config.layers):
        prefix = f"model.layers.{i}."
        caches = cache_parameters(i, config)
        parameters += caches
        hidden = ops.add(hidden, _attention(config, weights, prefix, hidden, rotate, caches, paged, spreads))
        hidden = ops.add(hidden, _mlp(config, weights, prefix, hidden))
        kept[i] = hidden
    hidden = _norm(config, hidden, weights.vector("model.norm.weight"))
    kept[config.layers] = hidden
    head = embedding if config.tied_head else weights.matrix("lm_head")
    weights.finish()

    results = [_result(LOGITS, ops.matmul(ops.gather(hidden, logit_rows, _int(0)), head, False, True))]
    if capture:
        results.append(_result(FEATURES, ops.concat([kept[i] for i in capture], 1)))
    return ov.Model(results, parameters, "decoder")


def _attention(
    config: DecoderConfig,
    weights: Weights,
    prefix: str,
    hidden: Node,
    rotate: _Rotation,
    caches: list[Any],
    paged: PagedInputs,
    spreads: list[Node],
) -> Node:
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    names = [f"{prefix}self_attn.{part}_proj" for part in ("q", "k", "v")]
    rows = _linear(weights, _norm(config, hidden, weights.vector(prefix + "input_layernorm.weight")), *names)
    if spreads:
        rows = ops.gather(rows, spreads[0], _int(0))
    rotated, value = _split(rows, (heads + kv_heads) * head_dim, kv_heads * head_dim)
    rotated = ops.reshape(rotated, _int(-1, heads + kv_heads, head_dim), False)
    query_norm = weights.optional_vector(prefix + "self_attn.q_norm.weight")
    key_norm = weights.optional_vector(prefix + "self_attn.k_norm.weight")
    if query_norm is not None and key_norm is not None:
        rotated = _norm(config, rotated, np.stack([query_norm] * heads + [key_norm] * kv_heads))
    query, key = _split(rotate(rotated), heads, kv_heads)
    query = ops.reshape(query, _int(-1, heads * head_dim), False)
    key = ops.reshape(key, _int(-1, kv_heads * head_dim), False)
    answer = ops.reshape(paged_attention(query, key, value, caches, paged, config), _int(-1, heads * head_dim), False)
    if spreads:
        answer = ops.gather(answer, spreads[1], _int(0))
    return _linear(weights, answer, prefix + "self_attn.o_proj")


def _mlp(config: DecoderConfig, weights: Weights, prefix: str, hidden: Node) -> Node:
    rows = _norm(config, hidden, weights.vector(prefix + "post_attention_layernorm.weight"))
    both = _linear(weights, rows, prefix + "mlp.gate_proj", prefix + "mlp.up_proj")
    gate, up = _split(both, config.intermediate_size, config.intermediate_size)
    return _linear(weights, ops.multiply(ops.swish(gate), up), prefix + "mlp.down_proj")


class _Rotation:
    """Rotary position embedding of the rows' positions: x cos + (-x2, x1) sin with x = (x1, x2)."""

    def __init__(self, config: DecoderConfig, position: Node, positions: int) -> None:
        angles = np.arange(positions, dtype=np.float32)[:, None] * config.rope_frequencies.numpy()
        cos, sin = np.cos(angles) * config.rope_scale, np.sin(angles) * config.rope_scale
        # sin carries the sign of the swap; [positions, 1, head_dim], the same for all heads
        self.cos = _rows_at(np.concatenate([cos, cos], axis=1)[:, None], position)
        self.sin = _rows_at(np.concatenate([-sin, sin], axis=1)[:, None], position)

    def __call__(self, x: Node) -> Node:
        """x: [R, heads, head_dim]"""
        first, second = ops.split(x, _int(2), 2).outputs()
        return ops.add(ops.multiply(x, self.cos), ops.multiply(ops.concat([second, first], 2), self.sin))


def _rows_at(table: Floats, position: Node) -> Node:
    return ops.gather(ops.constant(table.astype(np.float32)), position, _int(0))


def _linear(weights: Weights, x: Node, *names: str) -> Node:
    """One layer from projections that read the same rows."""
    answer = ops.matmul(x, weights.matrix(*names), False, True)
    bias = weights.bias(*names)
    return answer if bias is None else ops.add(answer, ops.constant(bias))


def _norm(config: DecoderConfig, x: Node, weight: Floats) -> Node:
    """Root-mean-square norm over the last axis, as a pattern that the plugin turns into one kernel."""
    mean = ops.reduce_mean(ops.power(x, _float(2)), _int(-1), True)
    inverse = ops.divide(_float(1), ops.sqrt(ops.add(mean, _float(config.norm_epsilon))))
    return ops.multiply(ops.multiply(x, inverse), ops.constant(weight))


def _split(x: Node, first: int, second: int) -> tuple[Node, Node]:
    """Both parts of axis 1."""
    left, right = ops.variadic_split(x, _int(1), _int(first, second)).outputs()
    return left, right


def _result(name: str, node: Node) -> Node:
    node.output(0).get_tensor().set_names({name})
    return ops.result(node)


def _int(*values: int) -> Node:
    """A scalar for one value, else a vector."""
    return ops.constant(np.array(values if len(values) > 1 else values[0], np.int64))


def _float(value: float) -> Node:
    return ops.constant(np.array(value, np.float32))
