"""`noise` on a device: the same words of Philox, the same race and the same winner, in torch.

Words are kept in int64, since torch has no arithmetic on unsigned words; a product of two of them wraps around, which
leaves all 64 of its bits right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.sampling.noise import BLOCK

WORD = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_ARRIVAL, _MEMBER = 0, 1  # third counter word


class Keys(NamedTuple):
    """What the noise of each of N rows is keyed by; int64 on the device."""

    low: Tensor  # [N] low word of the seed
    high: Tensor  # [N]
    position: Tensor  # [N] of the token that is drawn

    def rows(self, index: Tensor) -> Keys:
        return Keys(self.low[index], self.high[index], self.position[index])


def keys_of(seed: npt.NDArray[np.uint64], position: npt.NDArray[Any], device: torch.device | str) -> Keys:
    """Of N rows, on a device. seed, position: [N] on the host."""
    words = (seed & np.uint64(WORD), seed >> np.uint64(32), position)
    return Keys(*(torch.from_numpy(w.astype(np.int64)).to(device, non_blocking=True) for w in words))


def philox(counter: tuple[Tensor | int, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10. Words in int64 of broadcastable shapes in, four words of the joint shape out."""
    shape = torch.broadcast_shapes(*(w.shape for w in (*counter, *key) if isinstance(w, Tensor)))
    c0, c1, c2, c3 = (w.expand(shape) if isinstance(w, Tensor) else key[0].new_full(shape, w) for w in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIER[0] * c0, _MULTIPLIER[1] * c2
        c0, c1 = (p1 >> 32 & WORD) ^ c1 ^ k0, p1 & WORD
        c2, c3 = (p0 >> 32 & WORD) ^ c3 ^ k1, p0 & WORD
        k0, k1 = k0 + _WEYL[0] & WORD, k1 + _WEYL[1] & WORD
    return c0, c1, c2, c3


def race(logits: Tensor, keys: Keys) -> Tensor:
    """[N] int64, the token of each row that wins the race. logits: [N, V] float32 as for `noise.race`."""
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // BLOCK)
    padded = logits
    if blocks * BLOCK != vocabulary:
        padded = logits.new_full((rows, blocks * BLOCK), float("-inf"))
        padded[:, :vocabulary] = logits
    padded = padded.view(rows, blocks, BLOCK)

    arrival, owner = _first_arrivals(keys, torch.arange(blocks, device=logits.device)[None], vocabulary)
    gumbel = -arrival.log()
    owner_score = padded.gather(2, owner[:, :, None])[:, :, 0] + gumbel
    bound = padded.amax(dim=2) + gumbel  # no member of the block scores higher
    row, block = (bound >= owner_score.amax(dim=1, keepdim=True)).nonzero(as_tuple=True)  # may hold the winner
    scores = padded[row, block] - _member_arrivals(arrival, owner, keys, row, block).log()

    best, member = scores.max(dim=1)
    winning = best.new_full((rows,), float("-inf")).scatter_reduce_(0, row, best, "amax")
    token = torch.where(best == winning[row], block * BLOCK + member, vocabulary)  # ties to the smaller token
    return token.new_full((rows,), vocabulary).scatter_reduce_(0, row, token, "amin")


def gumbel(tokens: Tensor, keys: Keys, vocabulary: int) -> Tensor:
    """[N, S] float64, the noise of some tokens of each row, as `race` has it. tokens: [N, S]."""
    arrival, owner = _first_arrivals(keys, tokens // BLOCK, vocabulary)
    words = philox((tokens // 4, keys.position[:, None], _MEMBER, 0), (keys.low[:, None], keys.high[:, None]))
    own = torch.stack(words, dim=2).gather(2, (tokens % 4)[:, :, None])[:, :, 0]
    return -torch.where(owner == tokens % BLOCK, arrival, arrival + _exponential(own)).log()


def _first_arrivals(keys: Keys, block: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Time of the first arrival in each block, and which member it is. block: [N or 1, M] indices."""
    words = philox((block, keys.position[:, None], _ARRIVAL, 0), (keys.low[:, None], keys.high[:, None]))
    size = (vocabulary - block * BLOCK).clamp_max(BLOCK)
    return _exponential(words[0]) / size, words[1] * size >> 32


def _member_arrivals(arrival: Tensor, owner: Tensor, keys: Keys, row: Tensor, block: Tensor) -> Tensor:
    """[M, BLOCK] arrival of every member of block[m] in row[m]."""
    quad = block[:, None] * (BLOCK // 4) + torch.arange(BLOCK // 4, device=block.device)
    chosen = keys.rows(row)
    words = philox((quad, chosen.position[:, None], _MEMBER, 0), (chosen.low[:, None], chosen.high[:, None]))
    first = arrival[row, block][:, None]
    members = first + _exponential(torch.stack(words, dim=2).view(len(row), BLOCK))
    return members.scatter_(1, owner[row, block][:, None], first)


def _exponential(word: Tensor) -> Tensor:
    """Exp(1), float64, from a uniform word; the half keeps u inside (0, 1)."""
    return -((word.double() + 0.5) * 2.0**-32).log()
