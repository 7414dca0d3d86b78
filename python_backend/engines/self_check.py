"""A start-up check: an engine's logits against those of the PyTorch network in float32.

The reference is computed at the first start on a checkpoint and kept beside its weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engine import EngineError
from python_backend.protocol import Part, TargetStep, row_starts
from python_backend.settings import CoordinatorSettings, Quantization, TargetSettings

Floats = npt.NDArray[np.float32]

FILE = "reference_logits.json"
ROWS = (20, 4, 1)  # a prompt chunk, a verify pass and a decode, one after the other
CHECK_ROWS = 64  # of the pass that must give the same bits
COLUMNS = 64  # vocabulary ids compared, spread evenly
# Largest difference allowed, as a part of the largest reference logit. Measured on the embedded model: 1e-5 for exact
# weights, up to 0.15 for 8 bits; weights with rounded zero points, which write repetitive text, are at 1.
LIMITS: dict[Quantization, float] = {"exact": 1e-4, "int8-dynamic": 0.3}


class Reference(NamedTuple):
    """Logits of fixed tokens at some vocabulary ids."""

    sha256: str  # of the weights they belong to
    token_ids: list[int]  # [sum(ROWS)]
    columns: list[int]  # [COLUMNS]
    logits: list[list[float]]  # [sum(ROWS), COLUMNS]


def self_check(reference: Reference, target: TargetSettings, forward: Callable[[TargetStep], Floats]) -> None:
    """Raise EngineError where logits are further from the reference than the weights explain, or, with
    `target.invariant`, depend on the shape of the pass.

    forward: logits [R, vocabulary] of all rows of a step on slot 0, whose first CHECK_ROWS rows may be overwritten.
    """
    token_ids = np.array(reference.token_ids, dtype=np.int32)
    starts = row_starts(np.array(ROWS))
    computed = np.concatenate(
        [
            forward(step_of(token_ids[start:end], start))[:, reference.columns]
            for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]
    )
    expected = np.array(reference.logits, dtype=np.float32)
    difference = np.abs(computed - expected)
    row, column = np.unravel_index(np.argmax(difference), difference.shape)  # finds NaN first
    limit = LIMITS[target.quantization] * float(np.abs(expected).max())
    if not difference[row, column] <= limit:
        raise EngineError(
            f"self-check failed: the logit of token {reference.columns[column]} after {row + 1} tokens is "
            f"{computed[row, column]:.6g}, the reference says {expected[row, column]:.6g}, limit of the difference "
            f"{limit:.2g} with target.quantization {target.quantization}. Fetch the model again, or use target.engine "
            "torch"
        )
    if target.invariant:
        whole = forward(step_of(np.resize(token_ids, CHECK_ROWS), 0))[: len(token_ids), reference.columns]
        if (unequal := whole != computed).any():
            raise EngineError(
                f"self-check failed: {unequal.any(axis=1).sum()} of {len(whole)} rows have other logits in a pass of "
                f"{CHECK_ROWS} rows than in passes of {', '.join(map(str, ROWS))}, by up to "
                f"{np.abs(whole - computed).max():.2g}: this processor cannot serve target.invariant true"
            )


def load_reference(folder: Path, sha256: str, vocabulary_size: int) -> Reference:
    """The reference kept beside the weights, computed and kept where it is missing or of other weights."""
    file = folder / FILE
    if file.is_file():
        stored = Reference(**json.loads(file.read_text()))
        if stored.sha256 == sha256:
            return stored
    reference = compute_reference(folder, sha256, vocabulary_size)
    try:
        file.write_text(json.dumps(reference._asdict()) + "\n")
    except OSError:  # a read-only model store: computed again at every start
        return reference
    return reference


def compute_reference(folder: Path, sha256: str, vocabulary_size: int) -> Reference:
    """Run the PyTorch network over random tokens."""
    from python_backend.engines.torch_engine import TorchEngine

    rows = sum(ROWS)
    random = np.random.default_rng(0)
    token_ids = random.integers(vocabulary_size, size=rows).astype(np.int32)
    columns = np.unique(np.linspace(0, vocabulary_size - 1, COLUMNS).astype(np.int64))
    engine = TorchEngine(folder, TargetSettings(), CoordinatorSettings(max_sequences=1, max_length=rows))
    logits = engine.network.head(engine.forward(step_of(token_ids, 0)).hidden)[:, columns]
    return Reference(sha256, token_ids.tolist(), columns.tolist(), logits.tolist())


def step_of(token_ids: npt.NDArray[np.int32], past: int) -> TargetStep:
    """The next rows of slot 0, without drafts."""
    return TargetStep.of([Part(0, past, token_ids.tolist(), sample=False)])
