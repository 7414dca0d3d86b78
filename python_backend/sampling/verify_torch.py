"""Acceptance on a device: what `verify.accept` does, for all sequences at once and without bringing logits to the host.

Sequences that are decoded by plain argmax need a few small transfers in a pass, one of them back. The columns of a
processor are moved only where a sequence uses it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.protocol import NO_TOKEN, Array, TargetStep, row_starts
from python_backend.rows import row_owners
from python_backend.sampling import processors_torch as processors
from python_backend.sampling.corners import BROKEN, LARGEST, check_emitted, heat_of
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.noise_torch import keys_of, race
from python_backend.sampling.verify import Acceptance, Rows, decided_rows, logit_rows, needs_processing


@torch.inference_mode()
def accept(step: TargetStep, logits: Tensor, history: TokenHistory) -> Acceptance:
    """Choose the target's tokens and accept drafts.

    logits: [N, V] float32, the rows of `verify.logit_rows(step)`; may be changed in place.
    history: holds the step's rows already.

    Raises LogitsError where a sequence would emit the token of a row with NaN.
    """
    rows = decided_rows(step)
    if len(logits) != len(rows.sequence):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows.sequence)} rows that are sampled")
    if not len(logits):
        return _nothing(step)
    asked = np.flatnonzero(step.return_log_probs[rows.sequence])
    raw = logits[_tensor(asked, logits)] if len(asked) else None
    tokens = choose(step, rows, logits, history)

    accepted = np.zeros(len(step.slot), dtype=np.int32)
    next_token = np.full(len(step.slot), NO_TOKEN, dtype=np.int32)
    accepted[step.sample], next_token[step.sample] = _agreement(step, tokens)
    check_emitted(step.slot, next_token)
    if raw is None:
        return Acceptance(accepted, next_token, np.zeros_like(accepted), np.zeros(0, np.float32))
    log_prob_count = np.where(step.return_log_probs & step.sample, accepted + 1, 0).astype(np.int32)
    emitted = _offset_of(rows)[asked] <= accepted[rows.sequence[asked]]
    every = _log_prob(raw, tokens[_tensor(asked, logits)]).cpu().numpy()
    return Acceptance(accepted, next_token, log_prob_count, every[emitted])


def _agreement(step: TargetStep, tokens: Tensor) -> npt.NDArray[np.int32]:
    """[2, sequences that are sampled]: how many drafts are the target's own tokens, and its token after them."""
    counts = step.draft_count[step.sample].astype(np.int64) + 1
    starts = row_starts(counts)
    number, offset = row_owners(counts)
    drafts = np.append(step.token_ids[logit_rows(step)][1:], NO_TOKEN)  # the draft after each row
    drafts[starts[1:] - 1] = NO_TOKEN  # none after a sequence's last
    most = int(counts.max())
    wrong = torch.where(tokens == _tensor(drafts, tokens), most, _tensor(offset, tokens))
    first = _tensor(starts[:-1], tokens)
    agreed = torch.full_like(first, most).scatter_reduce_(0, _tensor(number, tokens), wrong, "amin")
    answer: npt.NDArray[np.int32] = torch.stack((agreed, tokens[first + agreed])).int().cpu().numpy()
    return answer


def choose(step: TargetStep, rows: Rows, logits: Tensor, history: TokenHistory) -> Tensor:
    """[N] int64, the target's token of each row, `corners.BROKEN` of one with NaN."""
    top = logits.argmax(dim=1, keepdim=True)  # of a row with NaN, where that is
    tokens, broken = top[:, 0].clone(), logits.gather(1, top)[:, 0].isnan()
    on, hot = needs_processing(step)[rows.sequence], (heat_of(step.temperature) > 0)[rows.sequence]
    if on.any():
        part_of, part_top = Rows(rows.sequence[on], rows.position[on]), top[_tensor(np.flatnonzero(on), top)]
        _change(logits, on, lambda part: _process(step, part_of, part, part_top, history))
    if len(cold := np.flatnonzero(on & ~hot)):
        index = _tensor(cold, logits)
        tokens[index] = logits[index].argmax(dim=1)
    if len(drawn := np.flatnonzero(hot)):
        seed = step.seed[rows.sequence[drawn]]
        index = _tensor(drawn, logits)
        tokens[index] = race(logits[index], keys_of(seed, rows.position[drawn], logits.device))
    return tokens.masked_fill_(broken, BROKEN)


def _process(step: TargetStep, rows: Rows, logits: Tensor, top: Tensor, history: TokenHistory) -> None:
    """The processors of all rows, in the order of `verify`. top: [M, 1], their likeliest tokens."""
    sequence, position = rows

    def column(values: Array) -> Tensor:
        return _tensor(values[sequence][:, None], logits)

    processors.mend(logits, top)
    if _differs(step, "repetition_penalty", 1) or _differs(step, "presence_penalty", 0, "frequency_penalty"):
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        unique, row = np.unique(sequence, return_inverse=True)
        tokens = _tensor(history.tokens[step.slot[unique], : position.max()], logits).long()[_tensor(row, logits)]
        place = torch.arange(tokens.shape[1], device=logits.device)
        seen = place < _tensor(position[:, None], logits)
        output = seen & (place >= column(step.prompt_length))
        processors.penalise(logits, tokens, seen, output, *(column(getattr(step, name)) for name in penalties))
    _forbid_early_end(step, rows, logits)
    if len(step.bad_word_length):
        _ban_words(step, rows, logits, history)
    if len(step.end_ids) or len(step.bad_word_length):
        processors.keep_one(logits, top)
    heat = heat_of(step.temperature)
    if not heat.any():
        return
    drawn = heat > 0
    processors.cool(logits, column(np.where(drawn, heat, np.float32(1))))
    if (on := drawn & (step.min_p > 0)).any():
        with np.errstate(divide="ignore"):
            log = np.log(np.where(on, step.min_p, 0).astype(np.float64)).astype(np.float32)
        processors.keep_min_p(logits, column(log))
    vocabulary = logits.shape[1]
    on = (drawn & (step.top_k > 0) & (step.top_k < vocabulary))[sequence]
    top_k = step.top_k[sequence[on], None].astype(np.int64)
    _change(logits, on, lambda part: processors.keep_top_k(part, _tensor(top_k, logits), int(top_k.max())))
    on = (drawn & (step.top_p > 0) & (step.top_p < 1))[sequence]
    top_p = step.top_p[sequence[on], None].astype(np.float64)
    _change(logits, on, lambda part: processors.keep_top_p(part, _tensor(top_p, logits)))


def _change(logits: Tensor, on: npt.NDArray[np.bool_], change: Callable[[Tensor], None]) -> None:
    """Change the rows that are on, which may be few, in place."""
    if not on.any():
        return
    if on.all():
        change(logits)
        return
    index = _tensor(np.flatnonzero(on), logits)
    part = logits[index]
    change(part)
    logits[index] = part


def _forbid_early_end(step: TargetStep, rows: Rows, logits: Tensor) -> None:
    early = np.flatnonzero(rows.position - step.prompt_length[rows.sequence] < step.min_tokens[rows.sequence])
    row, number = row_owners(step.end_id_count[rows.sequence[early]])
    if len(row):
        ends = step.end_ids[row_starts(step.end_id_count)[rows.sequence[early][row]] + number].astype(np.int64)
        pairs = _tensor(early[row], logits), _tensor(ends, logits)
        processors.forbid(logits, *pairs, torch.ones_like(pairs[0], dtype=torch.bool))


def _ban_words(step: TargetStep, rows: Rows, logits: Tensor, history: TokenHistory) -> None:
    width = int(step.bad_word_length.max())
    word, place = row_owners(step.bad_word_length)
    words = np.full((len(step.bad_word_length), width), NO_TOKEN, dtype=np.int64)
    words[word, place + width - step.bad_word_length[word]] = step.bad_word_ids

    row, number = row_owners(step.bad_word_count[rows.sequence])
    if not len(row):
        return
    pair = row_starts(step.bad_word_count)[rows.sequence[row]] + number
    place = rows.position[row][:, None] - np.arange(width - 1, 0, -1)
    slot = step.slot[rows.sequence[row]][:, None]
    before = np.where(place >= 0, history.tokens[slot, np.maximum(place, 0)], NO_TOKEN)
    arrays = (row, before, words[pair], step.bad_word_length[pair])
    processors.ban_words(logits, *(_tensor(a.astype(np.int64), logits) for a in arrays))


def _differs(step: TargetStep, name: str, usual: float, *more: str) -> bool:
    return any((getattr(step, n) != usual).any() for n in (name, *more))


def _offset_of(rows: Rows) -> npt.NDArray[np.int64]:
    """[N] the row's number within its sequence."""
    _, counts = np.unique(rows.sequence, return_counts=True)
    return row_owners(counts)[1]


def _log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """[n] of some tokens; of those of broken rows something. logits: [n, V], changed where they are infinite."""
    processors.mend(logits, logits.argmax(dim=1, keepdim=True))
    normaliser = logits.double().logsumexp(dim=1)
    return (logits.gather(1, tokens.clamp_min(0)[:, None])[:, 0] - normaliser).clamp_min(-LARGEST).float()


def _nothing(step: TargetStep) -> Acceptance:
    zeros = np.zeros(len(step.slot), dtype=np.int32)
    return Acceptance(zeros, np.full_like(zeros, NO_TOKEN), zeros.copy(), np.zeros(0, np.float32))


def _tensor(values: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, non_blocking=True)
