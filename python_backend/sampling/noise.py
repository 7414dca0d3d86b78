"""One noise for drafter and target, keyed by (seed, position, token).

Gumbel-max as an exponential race (Maddison et al., 2014): with E_v ~ Exp(1) independent, the token that minimises
E_v / p_v is distributed as p; equivalently it maximises log p_v + g_v with g_v = -log E_v. The E_v are a fixed
function of (seed, position, v), so a drafter that races with the same E on its own q agrees with the target as often
as q resembles p, and the output depends on nothing but prompt, parameters and seed.

The race is run in blocks. The first arrival of a block of n independent Exp(1) is Exp(1)/n, its owner is uniform,
and the others arrive an independent Exp(1) later (memorylessness). So E is drawn block first: arrival and owner for
every block, members only for the blocks that can still win. The law is that of V independent draws; the cost is
that of V/64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 64  # tokens that share a first arrival

_ARRIVAL, _MEMBER = np.full((1, 1), 0, np.uint32), np.full((1, 1), 1, np.uint32)  # third counter word
_ZERO = np.zeros((1, 1), np.uint32)
_KINDS = np.stack([_ARRIVAL, _MEMBER])

_MULTIPLIER = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_ROUNDS = 10
_SCHEDULE = np.arange(_ROUNDS, dtype=np.uint64)[:, None] * _WEYL  # added to the key, round by round
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10 (Salmon et al., SC 2011). Words of broadcastable shapes in, four words of the joint shape out."""
    # Words 0 and 2 in one array, 1 and 3 in another: for few tokens numpy's calls are what it costs.
    shape = np.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    even, odd = np.empty((2, *shape), np.uint64), np.empty((2, *shape), np.uint64)
    even[0], odd[0], even[1], odd[1] = counter
    ones = (1,) * len(shape)
    multiplier, weyl = _MULTIPLIER.reshape(2, *ones), _SCHEDULE.reshape(_ROUNDS, 2, *ones)
    words = [word.astype(np.uint64).reshape(ones[word.ndim :] + word.shape) for word in key]
    for round_key in (np.stack(words) + weyl) & _LOW:
        product = even * multiplier
        even = (product >> _HALF)[::-1] ^ odd ^ round_key
        odd = (product & _LOW)[::-1]
    return even[0].astype(np.uint32), odd[0].astype(np.uint32), even[1].astype(np.uint32), odd[1].astype(np.uint32)


def race(logits: npt.NDArray[np.float32], seed: npt.NDArray[Any], position: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The token of each row that wins the race.

    logits: [N, V] float32, any offset per row, -inf outside the support (at least one finite per row).
    seed: [N] uint64. position: [N], of the token that is drawn. Returns [N] int32.
    """
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // BLOCK)
    padded = logits
    if blocks * BLOCK != vocabulary:
        padded = np.full((rows, blocks * BLOCK), -np.inf, dtype=np.float32)
        padded[:, :vocabulary] = logits
    padded = padded.reshape(rows, blocks, BLOCK)

    arrival, owner = _first_arrivals(seed, position, np.arange(blocks)[None, :], vocabulary)
    first = -np.log(arrival)
    owner_score = np.take_along_axis(padded, owner[:, :, None], axis=2)[:, :, 0] + first
    bound = padded.max(axis=2) + first  # no member of the block scores higher
    row, block = np.nonzero(bound >= owner_score.max(axis=1, keepdims=True))  # those that may hold the winner
    members = _member_arrivals(arrival, owner, seed, position, row, block)
    scores = padded[row, block] - np.log(members)

    token = block * BLOCK + scores.argmax(axis=1)
    order = np.lexsort((token, -scores.max(axis=1), row))  # best first within a row, ties to the smaller token
    best = np.searchsorted(row[order], np.arange(rows))
    return token[order[best]].astype(np.int32)


def gumbel(seed: npt.NDArray[Any], position: npt.NDArray[Any], tokens: npt.NDArray[Any], vocabulary: int) -> Floats:
    """[N, S] the noise g = -log E of some tokens of each row, as `race` has it.

    seed: [N] uint64. position: [N]. tokens: [N, S].
    """
    block, quad = tokens // BLOCK, tokens // 4
    counters = np.stack([block, quad]).astype(np.uint32)  # arrivals and members, in one call
    words = philox((counters, _column(position), _KINDS, _ZERO), _key(seed))
    arrival, owner = _first_arrival(words[0][0], words[1][0], block, vocabulary)
    own = np.choose(tokens % 4, [word[1] for word in words])
    return -np.log(np.where(owner == tokens % BLOCK, arrival, arrival + _exponential(own)))


def exponentials(seed: int, position: int, vocabulary: int) -> Floats:
    """[V] the whole field E of one position, as `race` sees it lazily. For tests and small vocabularies."""
    blocks = -(-vocabulary // BLOCK)
    seeds, positions = np.array([seed], dtype=np.uint64), np.array([position])
    block = np.arange(blocks)
    arrival, owner = _first_arrivals(seeds, positions, block[None, :], vocabulary)
    row = np.zeros(blocks, dtype=np.int64)
    return _member_arrivals(arrival, owner, seeds, positions, row, block).reshape(-1)[:vocabulary]


def _first_arrivals(
    seed: npt.NDArray[Any], position: npt.NDArray[Any], block: npt.NDArray[Any], vocabulary: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Time of the first arrival in each block, and which member it is. block: [N or 1, M] indices."""
    words = philox((block.astype(np.uint32), _column(position), _ARRIVAL, _ZERO), _key(seed))
    return _first_arrival(words[0], words[1], block, vocabulary)


def _first_arrival(
    time: Words, member: Words, block: npt.NDArray[Any], vocabulary: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """As `_first_arrivals`, from the words of each block."""
    size = np.minimum(vocabulary - block.astype(np.int64) * BLOCK, BLOCK)
    owner = (member.astype(np.uint64) * size.astype(np.uint64)) >> _HALF
    return _exponential(time) / size, owner.astype(np.int64)


def _member_arrivals(
    arrival: Floats,
    owner: npt.NDArray[np.int64],
    seed: npt.NDArray[Any],
    position: npt.NDArray[Any],
    row: npt.NDArray[np.int64],
    block: npt.NDArray[np.int64],
) -> Floats:
    """[M, BLOCK] arrival of every member of block[m] in row[m]."""
    quad = (block[:, None] * (BLOCK // 4) + np.arange(BLOCK // 4)).astype(np.uint32)
    words = philox(
        (quad, _column(position[row]), _MEMBER, _ZERO),
        _key(seed[row]),
    )
    first = arrival[row, block]
    members = first[:, None] + _exponential(np.stack(words, axis=2).reshape(len(row), BLOCK))
    members[np.arange(len(row)), owner[row, block]] = first
    return members


def _exponential(word: Words) -> Floats:
    """Exp(1) from a uniform word; the half keeps u inside (0, 1)."""
    return -np.log((word.astype(np.float64) + 0.5) * 2.0**-32)


def _column(position: npt.NDArray[Any]) -> Words:
    return position.astype(np.uint32)[:, None]


def _key(seed: npt.NDArray[Any]) -> tuple[Words, Words]:
    seed = seed.astype(np.uint64)[:, None]
    return seed.astype(np.uint32), _high(seed)


def _high(product: npt.NDArray[np.uint64]) -> Words:
    return (product >> np.uint64(32)).astype(np.uint32)
