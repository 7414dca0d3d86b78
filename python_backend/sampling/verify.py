"""Acceptance: the target's own token at every row, and how many drafts equal it.

The target's token at absolute position t is y_t: the argmax at temperature 0, else the winner of the keyed race
(`noise`) on the processed distribution; `corners` says what extreme values mean. Drafts are accepted while they equal
y. Pruning therefore cannot change the output: it only decides how many of the y are computed in this pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.protocol import NO_TOKEN, SamplingColumns, TargetStep, row_starts
from python_backend.rows import row_owners
from python_backend.sampling import processors
from python_backend.sampling.corners import BROKEN, GREEDY_BELOW, LARGEST, check_emitted, heat_of
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.noise import race


class Acceptance(NamedTuple):
    """What a verify pass decided for B sequences."""

    accepted: npt.NDArray[np.int32]  # [B]
    next_token: npt.NDArray[np.int32]  # [B] -1 where nothing was sampled
    log_prob_count: npt.NDArray[np.int32]  # [B]
    log_probs: npt.NDArray[np.float32]  # [sum log_prob_count]


class Rows(NamedTuple):
    """Which sequence each row of logits belongs to, and the position of the token it decides."""

    sequence: npt.NDArray[np.int64]  # [N]
    position: npt.NDArray[np.int64]  # [N]


def logit_rows(step: TargetStep) -> npt.NDArray[np.int64]:
    """[N] indices into the packed rows of those that need logits: each sampled sequence's anchor (or last prompt
    row) and its drafts."""
    ends = row_starts(step.row_count)[1:][step.sample]
    counts = step.draft_count[step.sample].astype(np.int64) + 1
    owner, offset = row_owners(counts)
    return ends[owner] - counts[owner] + offset


def accept(step: TargetStep, logits: npt.NDArray[np.float32], history: TokenHistory) -> Acceptance:
    """Choose the target's tokens and accept drafts.

    logits: [N, V] float32, the rows of `logit_rows(step)`; may be changed in place.
    history: holds the step's rows already.

    Raises LogitsError where a sequence would emit the token of a row with NaN.
    """
    rows = decided_rows(step)
    if len(logits) != len(rows.sequence):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows.sequence)} rows that are sampled")
    raw = logits.copy() if step.return_log_probs.any() else logits
    tokens = choose(step, rows, logits, history.tokens[step.slot])

    batch = len(step.slot)
    accepted = np.zeros(batch, dtype=np.int32)
    next_token = np.full(batch, NO_TOKEN, dtype=np.int32)
    log_prob_count = np.zeros(batch, dtype=np.int32)
    log_probs: list[npt.NDArray[np.float32]] = []
    ends = row_starts(step.row_count)[1:]
    first = 0
    for i in np.flatnonzero(step.sample):
        count = int(step.draft_count[i])
        chosen = tokens[first : first + count + 1]
        drafts = step.token_ids[ends[i] - count : ends[i]]
        accepted[i] = _agreement(drafts, chosen)
        next_token[i] = chosen[accepted[i]]
        if step.return_log_probs[i]:
            log_prob_count[i] = accepted[i] + 1
            emitted = slice(first, first + log_prob_count[i])
            log_probs.append(_log_prob(raw[emitted], chosen[: log_prob_count[i]]))
        first += count + 1
    check_emitted(step.slot, next_token)
    return Acceptance(
        accepted,
        next_token,
        log_prob_count,
        np.concatenate(log_probs) if log_probs else np.zeros(0, np.float32),
    )


def choose(
    params: SamplingColumns, rows: Rows, logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """[N] the target's token of each row, `corners.BROKEN` of one with NaN. tokens: [B, max_length], the ids that row's
    position looks back on."""
    chosen = np.empty(len(logits), dtype=np.int32)
    words, heat = banned_words(params), heat_of(params.temperature)
    processed = needs_processing(params)[rows.sequence]
    plain = np.flatnonzero(~processed)
    chosen[plain] = (logits[plain] if processed.any() else logits).argmax(axis=1)  # without a copy where all are
    chosen[plain[np.isnan(logits[plain, chosen[plain]])]] = BROKEN  # for argmax stops at NaN
    drawn = processed & (heat > 0)[rows.sequence]
    with np.errstate(over="ignore", invalid="ignore"):  # -inf minus -inf, which penalties put right
        for r in np.flatnonzero(processed):
            i, row, peak = int(rows.sequence[r]), logits[r], logits[r].max()
            if np.isnan(peak):
                chosen[r], drawn[r] = BROKEN, False
                continue
            _process(params, i, heat[i], words[i], row, peak, tokens[i, : rows.position[r]])
            if not drawn[r]:
                chosen[r] = row.argmax()
    if drawn.any():
        chosen[drawn] = race(logits[drawn], params.seed[rows.sequence[drawn]], rows.position[drawn])
    return chosen


def banned_words(params: SamplingColumns) -> list[list[npt.NDArray[np.int32]]]:
    """Per sequence, its banned token sequences."""
    words = np.split(params.bad_word_ids, np.cumsum(params.bad_word_length)[:-1]) if len(params.bad_word_length) else []
    starts = row_starts(params.bad_word_count)
    return [words[starts[i] : starts[i + 1]] for i in range(len(params.bad_word_count))]


def decided_rows(step: TargetStep) -> Rows:
    """The rows of `logit_rows(step)`."""
    sampled = np.flatnonzero(step.sample)
    counts = step.draft_count[sampled].astype(np.int64) + 1
    owner, offset = row_owners(counts)
    ends = step.past_length.astype(np.int64) + step.row_count  # position after the last row
    return Rows(sampled[owner], ends[sampled[owner]] - counts[owner] + 1 + offset)


def needs_processing(params: SamplingColumns) -> npt.NDArray[np.bool_]:
    """[B] false for plain argmax: those rows are never copied or scanned."""
    return (
        (params.temperature >= GREEDY_BELOW)
        | (params.repetition_penalty != 1)
        | (params.presence_penalty != 0)
        | (params.frequency_penalty != 0)
        | (params.min_tokens > 0)
        | (params.bad_word_count > 0)
    )


def _process(
    params: SamplingColumns,
    i: int,
    heat: np.float32,
    words: list[npt.NDArray[np.int32]],
    row: npt.NDArray[np.float32],
    peak: np.float32,
    history: npt.NDArray[np.int32],
) -> None:
    """The processors of one row of sequence i. heat: its temperature. peak: the row's largest logit, no NaN."""
    early = len(history) - params.prompt_length[i] < params.min_tokens[i]
    bans, infinite = early or len(words) > 0, not np.isfinite(peak)
    top = int(row.argmax()) if bans or infinite else 0
    if infinite:
        processors.mend(row, top)
    penalties = tuple(
        float(values[i]) for values in (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    )
    penalised = penalties != (1, 0, 0)
    if penalised:
        processors.penalise(row, history, int(params.prompt_length[i]), *penalties)
    if early:
        row[_end_ids(params, i)] = -np.inf
    if bans:
        processors.ban_words(row, history, words)
        processors.keep_one(row, top)
    if not heat:
        return
    processors.cool(row, heat, row.max() if infinite or penalised or bans else peak)
    if params.min_p[i] > 0:
        processors.keep_min_p(row, float(params.min_p[i]))
    if params.top_k[i] > 0:
        processors.keep_top_k(row, int(params.top_k[i]))
    if 0 < params.top_p[i] < 1:
        processors.keep_top_p(row, float(params.top_p[i]))


def _end_ids(params: SamplingColumns, i: int) -> npt.NDArray[np.int32]:
    first = int(params.end_id_count[:i].sum())
    return params.end_ids[first : first + int(params.end_id_count[i])]


def _agreement(drafts: npt.NDArray[np.int32], chosen: npt.NDArray[np.int32]) -> int:
    """Length of the common prefix."""
    different = np.flatnonzero(drafts != chosen[: len(drafts)])
    return int(different[0]) if len(different) else len(drafts)


def _log_prob(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """[n] of some tokens; of those of broken rows something. logits: [n, V], changed where they are infinite."""
    for row in logits:
        processors.mend(row, int(row.argmax()))
    top = logits.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        normaliser = np.log(np.exp(logits - top).sum(axis=1, dtype=np.float64)) + top[:, 0]
    return np.maximum(logits[np.arange(len(tokens)), np.maximum(tokens, 0)] - normaliser, -LARGEST).astype(np.float32)
