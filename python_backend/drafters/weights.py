"""Drafter networks in a folder: `config.json`, and `model.safetensors` in bfloat16."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from python_backend.checkpoints.checkpoint import RECORD, CheckpointError, weights_sha256
from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.config import CONFIG, WEIGHTS, DrafterConfig
from python_backend.drafters.network import DraftNetwork, TargetParts
from python_backend.drafters.recurrent import RecurrentDrafter

EXACT = ("draft_ids", "feature_scale")  # kept as they are


def target_parts(folder: Path) -> TargetParts:
    """What drafters borrow from a checkpoint, in float32."""
    config, weights = read_config(folder), load_weights(folder)
    embedding = weights["model.embed_tokens.weight"].float()
    return TargetParts(
        embedding=embedding,
        head=embedding if config.tied_head else weights["lm_head.weight"].float(),
        final_norm=weights["model.norm.weight"].float(),
        rope_frequencies=config.rope_frequencies,
    )


def build_network(
    config: DrafterConfig, target: TargetParts, draft_ids: Tensor, feature_scale: Tensor
) -> BlockDrafter | RecurrentDrafter:
    """A network with fresh weights."""
    kind = BlockDrafter if config.is_block else RecurrentDrafter
    network = kind(config, target, draft_ids, feature_scale)
    with torch.no_grad():
        network.final_norm.weight.copy_(target.final_norm)
    return network


def save(network: DraftNetwork, folder: Path) -> None:
    """Write configuration and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(network.config.model_dump_json(indent=2) + "\n")
    state = {n: t if n in EXACT else t.to(torch.bfloat16) for n, t in network.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS)
    (folder / RECORD).unlink(missing_ok=True)  # the checksum of what was there before


def load(folder: Path, checkpoint: Path, draft_ids: Tensor | None = None) -> BlockDrafter | RecurrentDrafter:
    """The network of a folder, in float32, over the target that it was trained for.

    checkpoint: the target's folder. draft_ids: as many tokens to draft instead of its own, to train on with; not for a
    Markov head, which has learned what they are. Raises CheckpointError naming what is missing, or both checksums where
    it belongs to another target.
    """
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"'{folder}' holds no {CONFIG} with {WEIGHTS}: run `make train-drafters`")
    config = DrafterConfig.read(folder)
    found = weights_sha256(checkpoint)
    if found != config.target_sha256:
        raise CheckpointError(
            f"the drafter in '{folder}' was trained for a target with weights {config.target_sha256[:12]}…, "
            f"'{checkpoint}' has {found[:12]}…: train one for this target"
        )
    state = load_file(folder / WEIGHTS)
    if draft_ids is not None:
        state["draft_ids"] = draft_ids
    network = build_network(config, target_parts(checkpoint), state["draft_ids"], state["feature_scale"].float())
    network.load_state_dict({n: t if n in EXACT else t.float() for n, t in state.items()})
    return network
