"""The gradient of a batch's loss, without ever holding the logits of more than a few chains."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from python_backend.drafters.network import DraftNetwork
from training.fit import losses
from training.fit.batches import Batch
from training.fit.losses import Chains
from training.fit.recipe import Stage
from training.fit.unroll import Unrolled

ROWS_AT_ONCE = {"cpu": 168, "cuda": 4096}  # logits of 168 x 16,384 float32 are 11 MB and stay in the cache


class Tally:
    """Sums over chains, for the log. They stay on the device until somebody asks."""

    def __init__(self) -> None:
        self.loss: Tensor | float = 0.0
        self.weight: Tensor | float = 0.0
        self.length: Tensor | float = 0.0  # expected accepted drafts
        self.chains = 0
        self.agreed: list[Tensor] = []  # [D] each: drafts that are the target's first choice
        self.reached: list[Tensor] = []  # [D] each: drafts whose predecessors all are

    def summary(self) -> dict[str, float]:
        if not self.chains:
            return {}
        agreed, reached = (pad_sequence(parts).sum(1).tolist() for parts in (self.agreed, self.reached))
        conditional = {f"agree_{d + 1}": a / max(r, 1) for d, (a, r) in enumerate(zip(agreed, reached, strict=True))}
        return {
            "loss": float(self.loss) / max(float(self.weight), 1e-9),
            "expected_drafts": float(self.length) / self.chains,
        } | conditional


@torch.no_grad()
def teacher_probabilities(network: DraftNetwork, batch: Batch, row: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """(probabilities [U, Vd] over the tokens that can be drafted, index [N, D] into them) of the rows needed."""
    rows, index = torch.unique(torch.where(valid, row, row[valid][0]), return_inverse=True)
    return (batch.final.flatten(0, 1)[rows] @ network.head.T).softmax(-1), index


def backward(network: DraftNetwork, batch: Batch, unrolled: Unrolled, stage: Stage, tally: Tally) -> None:
    """Add the gradient of the weighted mean loss to the parameters, which must have none yet."""
    teacher, index = teacher_probabilities(network, batch, unrolled.row, unrolled.valid)
    hidden = unrolled.hidden.detach().requires_grad_()
    weight = torch.zeros((), device=hidden.device)
    chains_at_once = max(ROWS_AT_ONCE[hidden.device.type] // hidden.shape[1], 1)
    for begin in range(0, len(hidden), chains_at_once):
        part = slice(begin, begin + chains_at_once)
        chains = Chains(
            logits=network.logits(hidden[part], unrolled.previous[part]),
            teacher=teacher[index[part]],
            token=network.to_index(unrolled.token[part]),
            valid=unrolled.valid[part],
        )
        value, weights = losses.loss(chains, stage.loss, stage.weighting, unrolled.scale[part])
        value.backward()
        weight += weights.detach()
        _count(tally, chains, value)
    tally.weight += weight
    for parameter in network.parameters():  # those of the head have theirs already
        if parameter.grad is not None:
            parameter.grad /= weight
    assert hidden.grad is not None
    unrolled.hidden.backward(hidden.grad / weight)


@torch.no_grad()
def _count(tally: Tally, chains: Chains, value: Tensor) -> None:
    alpha = losses.accepted(chains)
    agree = (chains.logits.argmax(-1) == chains.teacher.argmax(-1)) & chains.valid
    reached = torch.cat((torch.ones_like(agree[:, :1]), agree[:, :-1].cumprod(1).bool()), 1) & chains.valid
    tally.loss += value.detach()
    tally.length += losses.expected_length(alpha, chains.valid).sum()
    tally.chains += len(alpha)
    tally.agreed.append((agree & reached).sum(0))
    tally.reached.append(reached.sum(0))
