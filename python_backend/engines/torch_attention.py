"""Attention of ragged rows over KV slots.

Sequences in neighbouring slots are attended together: a run of slots is a plain view of the cache, so nothing is
gathered or copied. Within a run, queries are padded to the longest sequence and a mask hides what a row must not see.
On a CPU padding is work, so runs are as long as it stays small; on a GPU a run costs a launch in every layer, so all
short sequences share a few, which also span the unused slots among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from python_backend.protocol import TargetStep, row_starts
from python_backend.rows import row_owners

Order = npt.NDArray[np.int64]

MAX_WASTE = 1.5  # padded over needed work of a run, above which a sequence starts a run of its own
JOINT_ROWS = 16  # sequences with more rows fill the cores alone
GAP = 8  # on a GPU, slots that a run steps over at a time
ALIGN = 8  # a GPU's attention copies, in every layer, a mask whose rows are no multiple of this

# Where torch prefers cuDNN's attention, on Hopper and newer, it plans anew for every length of the context: tens of ms.
torch.backends.cuda.enable_cudnn_sdp(False)


class KvCache:
    """Keys and values of every slot: [layers][slots, 2, kv_heads, max_length, head_dim].

    Memory of rows that were never written is reserved, not used. It reads as zeros: a masked row has weight 0, but
    0 times a stray NaN would still be NaN.
    """

    def __init__(
        self, layers: int, slots: int, kv_heads: int, max_length: int, head_dim: int, dtype: torch.dtype, device: str
    ) -> None:
        shape = (slots, 2, kv_heads, aligned(max_length), head_dim)
        self.layers = [lazy_zeros(shape, dtype, device) for _ in range(layers)]


@dataclass(frozen=True, eq=False)
class Run:
    """Sequences in slots first_slot..first_slot + sequences - 1, some perhaps unused, whose rows are rows
    first_row..last_row - 1."""

    first_slot: int
    sequences: int
    first_row: int
    last_row: int
    rows: int  # of the longest sequence, n
    length: int  # of the longest context, L; on a GPU a few hidden rows more where there is a mask
    query_rows: Tensor | None  # [sequences * n] row of each padded query; None where nothing is padded
    answer_rows: Tensor | None  # [rows of the run] padded query of each row
    mask: Tensor | None  # [sequences, 1, n * group, L], added to the scores; None where every row sees everything


@dataclass(frozen=True, eq=False)
class Plan:
    """How the rows of one step are laid out, on the device. `order` says where each packed row went."""

    token: Tensor  # [R]
    slot: Tensor  # [R]
    position: Tensor  # [R]
    runs: list[Run]
    order: Tensor  # [R] the row of the pass that holds each packed row


def plan(step: TargetStep, group: int, dtype: torch.dtype, device: str, few_runs: bool) -> Plan:
    """Lay out a step. group: query heads per KV head. few_runs: as a GPU likes it."""
    long = (step.row_count > JOINT_ROWS) & few_runs
    sequence = np.lexsort((step.slot, long))
    slot, past, count = (a[sequence].astype(np.int64) for a in (step.slot, step.past_length, step.row_count))
    owner, offset = row_owners(count)
    packed = row_starts(step.row_count)[sequence][owner] + offset
    spans = join_runs(slot, count) if few_runs else split_runs(slot, past, count)
    starts = row_starts(count)
    return Plan(
        token=on_device(step.token_ids[packed].astype(np.int64), device),
        slot=on_device(slot[owner], device),
        position=on_device(past[owner] + offset, device),
        runs=[_run(first, last, slot, past, count, starts, group, dtype, device, few_runs) for first, last in spans],
        order=on_device(np.argsort(packed), device),
    )


def join_runs(slot: Order, count: Order) -> list[tuple[int, int]]:
    """[first, last) of each run over sequences sorted by slot, those with many rows after all others."""
    alone = count > JOINT_ROWS
    begins = np.flatnonzero((np.diff(slot) > GAP) | alone[1:]) + 1
    return list(pairwise([0, *begins.tolist(), len(slot)]))


def split_runs(slot: Order, past: Order, count: Order) -> list[tuple[int, int]]:
    """[first, last) of each run over sequences that are sorted by slot."""
    runs: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(slot) + 1):
        if i == len(slot) or slot[i] != slot[i - 1] + 1 or not _joinable(past[first : i + 1], count[first : i + 1]):
            runs.append((first, i))
            first = i
    return runs


def attend(query: Tensor, cache: Tensor, runs: list[Run]) -> Tensor:
    """Attention outputs [R, heads * head_dim] of rotated queries [R, heads, head_dim] over a layer's cache."""
    outputs = [_attend_run(query, cache, run) for run in runs]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_run(query: Tensor, cache: Tensor, run: Run) -> Tensor:
    """Query heads that share a KV head are folded into its rows, so keys and values are read once for all of them."""
    heads, head_dim = query.shape[1:]
    kv_heads = cache.shape[2]
    query = query[run.first_row : run.last_row]
    if run.query_rows is not None:
        query = query[run.query_rows]
    folded = query.view(run.sequences, run.rows, kv_heads, -1, head_dim).transpose(1, 2)
    folded = folded.reshape(run.sequences, kv_heads, -1, head_dim)
    keys, values = cache[run.first_slot : run.first_slot + run.sequences, :, :, : run.length].unbind(1)
    answer = F.scaled_dot_product_attention(folded, keys, values, attn_mask=run.mask)
    answer = answer.view(run.sequences, kv_heads, run.rows, -1, head_dim).transpose(1, 2)
    answer = answer.reshape(-1, heads * head_dim)
    return answer if run.answer_rows is None else answer[run.answer_rows]


def _joinable(past: Order, count: Order) -> bool:
    """Whether attending these sequences together wastes less than attending them apart."""
    length = past + count
    padded = len(count) * int(count.max()) * int(length.max())
    return int(count.max()) <= JOINT_ROWS and padded <= MAX_WASTE * int((count * length).sum()) + 4096


def _run(
    first: int,
    last: int,
    slot: Order,
    past: Order,
    count: Order,
    starts: Order,
    group: int,
    dtype: torch.dtype,
    device: str,
    pad: bool,
) -> Run:
    place = slot[first:last] - slot[first]  # slots between them are attended too, and their answers dropped
    sequences = int(place[-1]) + 1
    past, count = past[first:last], count[first:last]
    rows, length = int(count.max()), int((past + count).max())
    row = np.minimum(np.arange(rows), count[:, None] - 1)  # [last - first, n]; padding repeats the last row
    query_rows = answer_rows = None
    if (count < rows).any() or sequences > last - first:
        query = np.zeros((sequences, rows), dtype=np.int64)
        query[place] = (starts[first:last] - starts[first])[:, None] + row
        query_rows = on_device(query.reshape(-1), device)
        owner, offset = row_owners(count)
        answer_rows = on_device(place[owner] * rows + offset, device)
    last_seen = np.zeros((sequences, rows), dtype=np.int64)
    last_seen[place] = past[:, None] + row  # each row sees positions up to its own
    mask = None
    if (last_seen < length - 1).any():
        length = aligned(length) if pad else length
        seen = on_device(np.repeat(last_seen, group, axis=1), device)  # folded rows: group heads of a row side by side
        hidden = torch.arange(length, device=device) > seen[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))[:, None]
    return Run(
        first_slot=int(slot[first]),
        sequences=sequences,
        first_row=int(starts[first]),
        last_row=int(starts[last]),
        rows=rows,
        length=length,
        query_rows=query_rows,
        answer_rows=answer_rows,
        mask=mask,
    )


def on_device(values: Order, device: str) -> Tensor:
    """Indices, without waiting for what the device is computing."""
    return torch.from_numpy(values).to(device, non_blocking=True)


def aligned(length: int) -> int:
    """The next multiple of ALIGN."""
    return -(-length // ALIGN) * ALIGN


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Zeros whose pages the system hands out on first use; torch.zeros would touch them all."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
