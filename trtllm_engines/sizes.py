"""Counts of parameters and bytes, from sizes alone. Every function is arithmetic; nothing here was measured."""

from __future__ import annotations

from typing import NamedTuple

from trtllm_engines.recipe import Drafter, Experts, Geometry, Precision

BYTES = {"bf16": 2, "fp8": 1}  # of a quantised weight, and of a key or value
BF16 = 2  # what is never quantised: embedding, head (quantize.py without --quantize_lm_head), norms, routers, drafters
FP32 = 4


class Parameters(NamedTuple):
    """Of the target, by how they are kept and used."""

    embedding: int  # looked up, not multiplied
    head: int  # 0 where it is the embedding
    small: int  # norms and routers, replicated on every GPU
    dense: int  # matrices that every row passes
    routed: int  # matrices of routed experts, all of them
    per_row: int  # of the routed ones, what one row passes

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.small + self.dense + self.routed


def parameters(geometry: Geometry) -> Parameters:
    """Counts of a Llama- or Qwen3-like decoder with gated feed-forward networks, without biases."""
    hidden, layers, experts = geometry.hidden, geometry.layers, geometry.experts
    embedding = geometry.vocabulary * hidden
    routed_layers = layers - experts.dense_layers if experts else 0
    plain = (layers - routed_layers) * _gated(hidden, geometry.ffn)
    norms = layers * (2 * hidden + (2 * geometry.head_dim if geometry.qk_norm else 0)) + hidden
    one = _gated(hidden, experts.ffn) if experts else 0
    return Parameters(
        embedding=embedding,
        head=0 if geometry.tied else embedding,
        small=norms + routed_layers * hidden * (experts.number if experts else 0),
        dense=layers * attention(geometry) + plain + routed_layers * one * (experts.shared if experts else 0),
        routed=routed_layers * one * (experts.number if experts else 0),
        per_row=routed_layers * one * (experts.per_token if experts else 0),
    )


def attention(geometry: Geometry) -> int:
    """Parameters of one layer's four projections."""
    query, key = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    return 2 * geometry.hidden * query + 2 * geometry.hidden * key


def weight_bytes(geometry: Geometry, precision: Precision, gpus: int = 1) -> int:
    """The target's weights on one of `gpus` GPUs: matrices and head are split, embedding and norms are copied."""
    count = parameters(geometry)
    split = (count.dense + count.routed) * BYTES[precision] + count.head * BF16
    return split // gpus + (count.embedding + count.small) * BF16


def kv_bytes(geometry: Geometry, precision: Precision, gpus: int = 1) -> int:
    """Keys and values of one token in the target, on one of `gpus` GPUs. FP8 engines keep them in FP8."""
    return 2 * geometry.layers * geometry.kv_heads // gpus * geometry.head_dim * BYTES[precision]


def drafter_parameters(drafter: Drafter, geometry: Geometry) -> int:
    """Trained matrices of a drafter, norms left out (below 0.1 %).

    All have decoder layers. MTP: a projection of (embedding, hidden state) to hidden. EAGLE-3: one of the captured
    layers, and queries, keys and values of twice the width. DFlash: one of the captured layers; DFly adds a correction
    head of width `hidden` on two inputs (three matrices: 5 hidden^2), DSpark a Markov head of low rank. DFlare: keys
    and values of the context of its own. Draft vocabulary: the target's.
    """
    square = geometry.hidden**2
    basis = len(drafter.feature_layers) * square
    keys_values = 2 * geometry.hidden * geometry.kv_heads * geometry.head_dim
    query = geometry.hidden * geometry.heads * geometry.head_dim
    more = {
        "mtp": 2 * square,
        "eagle3": basis + drafter.layers * (query + keys_values),
        "dflash": basis,
        "dfly": basis + 5 * square,
        "dspark": basis + 2 * geometry.vocabulary * drafter.markov_rank,
        "dflare": drafter.layers * keys_values,
    }
    return drafter.layers * (attention(geometry) + _gated(geometry.hidden, drafter.ffn)) + more[drafter.kind]


def drafter_kv_bytes(drafter: Drafter, geometry: Geometry) -> int:
    """Keys and values of one context token in a drafter, bfloat16."""
    return 2 * drafter.layers * geometry.kv_heads * geometry.head_dim * BF16


def touched(experts: Experts, rows: float) -> float:
    """Expected fraction of the experts that `rows` rows touch, if the router spreads them evenly."""
    return float(1 - (1 - experts.per_token / experts.number) ** rows)


def _gated(hidden: int, ffn: int) -> int:
    return 3 * hidden * ffn
