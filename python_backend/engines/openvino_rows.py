"""How the packed rows of a step become the inputs of one pass, and where its rows end up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engines.blocks import BlockTables
from python_backend.engines.openvino_graph import LOGIT_ROWS, POSITIONS, TOKEN_IDS
from python_backend.protocol import Array, TargetStep, row_starts


class Pass(NamedTuple):
    """One pass over B sequences. Every sequence has at least `minimum_rows` rows: short ones repeat their last row."""

    inputs: dict[str, npt.NDArray[Any]]  # of the graph, caches excepted
    place: npt.NDArray[np.int64]  # [R] row of the pass that holds each packed row


def lay_out(blocks: BlockTables, step: TargetStep, wanted: Array, minimum_rows: int) -> Pass:
    """Give the step's slots their blocks and lay out its pass. wanted: [N] packed rows that need logits."""
    past, count = step.past_length.astype(np.int64), step.row_count.astype(np.int64)
    padded = np.maximum(count, minimum_rows)
    starts, begins = row_starts(count), row_starts(padded)
    owner = np.repeat(np.arange(len(count)), padded)
    offset = np.arange(begins[-1]) - begins[owner]
    source = starts[owner] + np.minimum(offset, count[owner] - 1)
    place = np.flatnonzero(offset < count[owner])
    lengths = past + padded
    blocks.resize(step.slot, lengths)
    indices = blocks.indices(step.slot)
    inputs = {
        TOKEN_IDS: step.token_ids[source].astype(np.int64),
        POSITIONS: past[owner] + offset,
        LOGIT_ROWS: place[wanted],
        "past_lens": past.astype(np.int32),
        "subsequence_begins": begins.astype(np.int32),
        "block_indices": indices.indices,
        "block_indices_begins": indices.begins,
        "max_context_len": np.array(lengths.max(), dtype=np.int32),
    }
    return Pass(inputs, place)
