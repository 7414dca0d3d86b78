"""Start a drafter's layers as copies of the target's own: they know the residual stream already."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from python_backend.drafters.block import BlockDrafter

SHARPNESS = 6.0  # of the first mix: nearly one captured layer alone


@torch.no_grad()
def copy_target_layers(network: BlockDrafter, layers: tuple[int, ...], weights: dict[str, Tensor]) -> None:
    """Copy target layer `layers[i]` into draft layer i.

    The layer's input norm moves into its projections, so that a context row that is the normed residual stream below
    the layer gives exactly the target's keys and values. Of the captured layers each reads the one nearest below.
    """
    captured = network.config.feature_layers
    reads = [min((abs(c - (layer - 1)), t) for t, c in enumerate(captured))[1] for layer in layers]
    for draft, source in zip(network.layers, layers, strict=True):
        take = partial(_weight, weights, source)
        norm = take("input_layernorm")
        qkv = torch.cat([take(f"self_attn.{part}_proj") for part in ("q", "k", "v")]) * norm
        draft.qkv.weight.copy_(qkv)
        if isinstance(draft.context_kv, nn.Linear):
            draft.context_kv.weight.copy_(qkv[draft.query_size :])
        draft.output.weight.copy_(take("self_attn.o_proj"))
        draft.mlp_norm.weight.copy_(take("post_attention_layernorm"))
        if f"model.layers.{source}.mlp.gate.weight" in weights:  # experts: no one network to copy, so begin without
            draft.down.weight.zero_()
        else:
            draft.gate_up.weight.copy_(torch.cat((take("mlp.gate_proj"), take("mlp.up_proj"))))
            draft.down.weight.copy_(take("mlp.down_proj"))
    if network.mix is not None:
        distance = torch.tensor([[abs(t - read) for t in range(len(captured))] for read in reads])
        network.mix.copy_(-SHARPNESS * distance)
    if network.basis is not None:
        network.basis.weight.zero_()
        if network.mix is None:  # nothing else carries the context: begin with one captured layer
            hidden, read = network.config.hidden_size, reads[len(reads) // 2]
            network.basis.weight[:, read * hidden : (read + 1) * hidden] = torch.eye(hidden)


def _weight(weights: dict[str, Tensor], layer: int, name: str) -> Tensor:
    return weights[f"model.layers.{layer}.{name}.weight"].float()
