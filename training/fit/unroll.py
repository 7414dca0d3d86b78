"""Chains of drafts as training sees them: where they start, what they are fed, what the target says at each.

Alignment, the field's main trap. Row j of a batch is the target's state after token j. A block whose anchor is token a
sees rows 0..a-1, and slot k drafts token a + k, about which the target says what row a + k - 1 says. A recurrent chain
that starts at row j is fed token j + 1, its anchor, and its draft d is token j + 2 + d: row j + 1 + d of the target.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.recurrent import RecurrentDrafter, State
from training.fit.attention import ChainAttention, attend, causal
from training.fit.batches import Batch


class Unrolled(NamedTuple):
    """N chains of D drafts."""

    hidden: Tensor  # [N, D, hidden]
    previous: Tensor  # [N, D] the token before each draft
    row: Tensor  # [N, D] flat row of the batch in which the target says what should be drafted
    token: Tensor  # [N, D] the token that came
    valid: Tensor  # [N, D]
    scale: Tensor  # [N, D] weight, below 1 off the path


def unroll_block(network: BlockDrafter, batch: Batch, depth: int, anchors: int, generator: torch.Generator) -> Unrolled:
    """Blocks at up to `anchors` random places of each sequence's response, previous tokens as they came."""
    n, length = batch.ids.shape[0], batch.features.shape[1]
    device = batch.ids.device
    row = torch.arange(length, device=device)
    eligible = (row >= batch.start[:, None]) & (row < batch.rows[:, None])  # the anchor's own row says draft 1
    order = torch.rand(n, length, generator=generator).to(device).masked_fill(~eligible, -1.0)
    anchor = order.topk(min(anchors, length), dim=1).indices.sort(dim=1).values  # [n, A]
    contexts = network.context(batch.features, batch.positions)
    visible = row < anchor[..., None]
    hidden = network.block(  # [n, A, D, hidden]
        batch.ids.gather(1, anchor), anchor, depth, lambda i, query, own: attend(query, contexts[i], visible, own)
    )

    steps = torch.arange(depth, device=device)
    target = anchor[..., None] + steps  # [n, A, D] row that decides each draft
    valid = eligible.gather(1, anchor)[..., None] & (target < batch.rows[:, None, None])
    target = target.clamp_max(length - 1)
    sequence = torch.arange(n, device=device)[:, None, None]
    previous, token = batch.ids[sequence, target], batch.ids[sequence, target + 1]
    keep = valid.any(-1)
    return Unrolled(
        hidden=network.correct(hidden, previous)[keep],
        previous=previous[keep],
        row=(sequence * length + target)[keep],
        token=token[keep],
        valid=valid[keep],
        scale=torch.ones_like(valid[keep], dtype=torch.float32),
    )


def run_first(network: RecurrentDrafter, batch: Batch) -> tuple[State, KeysValues]:
    """Depth 0 of every row [n, S, hidden], and the keys and values it leaves."""
    kept: list[KeysValues] = []

    def attention(_: int, query: Tensor, own: KeysValues) -> Tensor:
        kept.append(own)
        return causal(query, own)

    state = network.run(network.start(batch.features), batch.ids[:, 1:], batch.positions, attention)
    return state, kept[0]


def unroll_recurrent(network: RecurrentDrafter, batch: Batch, depth: int, off_path: float) -> Unrolled:
    """A chain from every row of the response, fed with its own drafts (training-time test): the state it carries and
    the keys it leaves are differentiated through, the drafted tokens are not.

    off_path: weight of drafts after a chain drafted what did not come, for what follows is another text there.
    """
    n, length = batch.ids.shape[0], batch.features.shape[1]
    device = batch.ids.device
    sequence = torch.arange(n, device=device)[:, None]
    state, first = run_first(network, batch)
    begin = max(int(batch.start.min()) - 1, 0)  # depth 0 runs everywhere for its keys; chains start in the response
    row = torch.arange(begin, length, device=device).expand(n, -1)
    visible = torch.arange(length, device=device) <= row[..., None]
    state = State(state.output[:, begin:], state.carried[:, begin:])
    on_path = torch.ones_like(row, dtype=torch.bool)
    starts = row + 1 >= batch.start[:, None]
    attention = ChainAttention(first, visible)
    parts = []
    previous = batch.ids[:, begin + 1 :]
    for d in range(depth):
        target = row + 1 + d
        valid = starts & (target < batch.rows[:, None])
        target = target.clamp_max(length - 1)
        token = batch.ids[sequence, target + 1]
        scale = torch.where(on_path, 1.0, off_path)
        parts.append((state.output, previous, sequence * length + target, token, valid, scale))
        if d + 1 < depth:
            drafted = token.clone()
            with torch.no_grad():
                drafted[valid] = network.draft_ids[network.logits(state.output[valid], previous[valid]).argmax(-1)]
            on_path = on_path & (drafted == token)
            previous = drafted
            state = network.run(state.carried, drafted, row + d + 1, attention)
    stacked = [torch.stack(values, 2) for values in zip(*parts, strict=True)]
    keep = stacked[4].any(-1)
    return Unrolled(*(values[keep] for values in stacked))
