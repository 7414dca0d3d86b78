"""Acceptance: exact at any temperature and any pruning, and the published alternative's bias is seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from python_backend.protocol import Part, TargetStep
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.noise import race
from python_backend.sampling.params import SamplingParams, columns
from python_backend.sampling.verify import accept, logit_rows

SAMPLES = 40_000
SIGNIFICANCE = 1e-4


def step_of(rows, drafts, past, params, prompt_length=1, sample=None):
    """A TargetStep from per-sequence token rows."""
    batch = len(rows)
    parts = map(Part, range(batch), past, rows, drafts, [True] * batch if sample is None else sample)
    return TargetStep.of(list(parts), **columns(params, [prompt_length] * batch))


def run(step, logits, slots=8, length=64):
    history = TokenHistory(slots, length)
    history.write(step)
    return accept(step, logits.astype(np.float32).copy(), history)


def one_hot(tokens, vocabulary=10):
    logits = np.zeros((len(tokens), vocabulary), dtype=np.float32)
    logits[np.arange(len(tokens)), tokens] = 5
    return logits


def test_drafts_are_accepted_up_to_the_first_that_differs():
    step = step_of([[3, 4, 5, 6], [1]], [3, 0], [2, 7], [SamplingParams()] * 2)
    result = run(step, one_hot([4, 5, 9, 7, 2]))
    assert result.accepted.tolist() == [2, 0]
    assert result.next_token.tolist() == [9, 2]


def test_a_full_acceptance_earns_the_bonus_token():
    result = run(step_of([[3, 4, 5]], [2], [2], [SamplingParams()]), one_hot([4, 5, 8]))
    assert (result.accepted[0], result.next_token[0]) == (2, 8)


def test_a_prompt_chunk_that_is_not_the_last_gets_no_token():
    step = step_of([[1, 2, 3], [4, 5]], [0, 0], [0, 0], [SamplingParams()] * 2, sample=[False, True])
    assert logit_rows(step).tolist() == [4]
    result = run(step, one_hot([6]))
    assert result.next_token.tolist() == [-1, 6]


def test_min_tokens_forbids_the_end_until_then():
    params = SamplingParams(min_tokens=2, end_ids=(4, 9))
    logits = one_hot([4, 4, 4]) + one_hot([2, 2, 2]) * 0.5
    result = run(step_of([[7, 2, 2]], [2], [0], [params]), logits)
    assert (result.accepted[0], result.next_token[0]) == (2, 4)


def test_penalties_see_the_drafted_prefix():
    params = SamplingParams(presence_penalty=10)
    result = run(step_of([[1, 4]], [1], [0], [params]), one_hot([4, 4]) + one_hot([3, 3]) * 0.5)
    assert (result.accepted[0], result.next_token[0]) == (1, 3)  # 4 was emitted by the draft: penalised after it


def test_log_probs_are_of_the_raw_distribution():
    params = SamplingParams(temperature=0.5, top_k=1, return_log_probs=True)
    logits = np.random.default_rng(0).normal(size=(2, 10)).astype(np.float32)
    best = int(logits[0].argmax())
    result = run(step_of([[1, best]], [1], [0], [params]), logits)
    expected = logits.max(axis=1) - np.log(np.exp(logits).sum(axis=1))
    assert np.allclose(result.log_probs, expected, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.7, 1.0]), st.integers(0, 6))
def test_any_number_of_kept_drafts_gives_the_same_tokens(data, temperature, kept):
    """Chain a fixed 'model' with full and with pruned drafts: the emitted stream is one and the same."""
    rng = np.random.default_rng(data)
    table = rng.normal(size=(12, 12)).astype(np.float32) * 2  # next-token logits by last token
    params = SamplingParams(temperature=temperature, top_p=0.9 if temperature == 0.7 else 0.0, seed=data)

    def decode(limit):
        tokens = [0]
        while len(tokens) < 30:
            drafts = rng.integers(0, 12, size=limit)
            if limit and rng.random() < 0.7:
                drafts[0] = table[tokens[-1]].argmax()
            rows = np.array([tokens[-1], *drafts])
            step = step_of([rows], [limit], [len(tokens) - 1], [params])
            result = run(step, table[rows])
            tokens += [*drafts[: result.accepted[0]], int(result.next_token[0])]
        return tokens[:30]

    assert decode(kept) == decode(0)


def draws(seed_base, p, q, keep):
    """First emitted tokens of SAMPLES requests: drafts from q with the shared noise, pruned by `keep`, verified by
    the real acceptance code."""
    tokens = np.empty(SAMPLES, dtype=np.int64)
    batch = 2000
    for first in range(0, SAMPLES, batch):
        seeds = np.arange(first, first + batch).astype(np.uint64) + np.uint64(seed_base)
        log_p, log_q = np.log(p).astype(np.float32), np.log(q).astype(np.float32)
        drafts = race(np.tile(log_q, (batch, 1)), seeds, np.ones(batch, dtype=int))
        kept = keep(drafts)
        rows = [np.array([0, d]) if k else np.array([0]) for d, k in zip(drafts, kept, strict=True)]
        params = [SamplingParams(temperature=1.0, seed=int(s)) for s in seeds]
        step = step_of(rows, kept.astype(int), [0] * batch, params)
        result = run(step, np.tile(log_p, (int(kept.sum()) + batch, 1)), slots=batch, length=4)
        tokens[first : first + batch] = np.where(result.accepted > 0, drafts, result.next_token)
    return tokens


def rejection_sampling_draws(rng, p, q, keep):
    """The published combination: drafts sampled from q, pruned by the sampled draft, verified by rejection sampling."""
    drafts = rng.choice(len(q), size=SAMPLES, p=q)
    residual = np.maximum(p - q, 0)
    residual = residual / residual.sum()
    fresh = rng.choice(len(p), size=SAMPLES, p=p)
    corrected = rng.choice(len(p), size=SAMPLES, p=residual)
    accepted = rng.random(SAMPLES) < np.minimum(1, p[drafts] / q[drafts])
    return np.where(keep(drafts), np.where(accepted, drafts, corrected), fresh)


def p_value(tokens, p):
    return chisquare(np.bincount(tokens, minlength=len(p)), p * SAMPLES).pvalue


CASES = {
    "two tokens": (np.array([0.5, 0.5]), np.array([0.9, 0.1])),
    "six tokens": (np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05]), np.array([0.6, 0.1, 0.1, 0.1, 0.05, 0.05])),
}


@pytest.mark.parametrize("case", CASES)
def test_pruning_by_the_drafted_token_leaves_our_output_unbiased(case):
    p, q = CASES[case]
    tokens = draws(1000, p, q, keep=lambda drafts: q[drafts] >= 0.5)
    assert p_value(tokens, p) > SIGNIFICANCE


@pytest.mark.parametrize("case", CASES)
def test_the_same_pruning_biases_rejection_sampling_and_is_detected(case):
    p, q = CASES[case]
    tokens = rejection_sampling_draws(np.random.default_rng(0), p, q, keep=lambda drafts: q[drafts] >= 0.5)
    assert p_value(tokens, p) < SIGNIFICANCE


@pytest.mark.parametrize("case", CASES)
def test_rejection_sampling_without_pruning_passes_the_same_test(case):
    """The control: the detector does not cry wolf."""
    p, q = CASES[case]
    tokens = rejection_sampling_draws(np.random.default_rng(1), p, q, keep=lambda drafts: np.ones(len(drafts), bool))
    assert p_value(tokens, p) > SIGNIFICANCE
