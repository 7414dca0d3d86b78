"""At the corners of float32: a token of the vocabulary, the same on every path and in any batch, and of the support."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.sampling import verify, verify_torch
from python_backend.sampling.corners import BROKEN, FAR, GREEDY_BELOW, LARGEST, LogitsError
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.noise import exponentials
from python_backend.sampling.params import SamplingParams
from tests.python_backend.sampling import corners
from tests.python_backend.sampling.corners import Case, pass_of

pytestmark = pytest.mark.filterwarnings("error")


def on_host(case: Case) -> list[int]:
    step = case.step
    rows = verify.decided_rows(step)
    return verify.choose(step, rows, case.logits.copy(), case.history.tokens[step.slot]).tolist()


def on_device(case: Case) -> list[int]:
    logits = torch.from_numpy(case.logits.copy())
    return verify_torch.choose(case.step, verify.decided_rows(case.step), logits, case.history).tolist()


def single(logits: list[float], history: tuple[int, ...] = (0,), prompt_length: int = 0, **asked: object) -> Case:
    """One sequence of one row."""
    params, past = SamplingParams(**asked), np.array([len(history) - 1])  # type: ignore[arg-type]
    store = TokenHistory(1, 24)
    store.tokens[0, : len(history)] = history
    step = pass_of([params], [prompt_length], np.zeros(1), past, np.array(history[-1:]))
    return Case(step, np.array([logits], dtype=np.float32), store, [params], [prompt_length])


def token(case: Case) -> int:
    """The one that every path chooses."""
    (host,), (elsewhere,) = on_host(case), on_device(case)
    assert host == elsewhere
    return host


@settings(max_examples=200, deadline=None)
@given(corners.cases())
def test_every_row_gives_a_token_of_the_vocabulary_on_every_path(case: Case) -> None:
    chosen = on_host(case)
    assert all(0 <= t < case.logits.shape[1] for t in chosen)
    assert on_device(case) == chosen


@settings(max_examples=80, deadline=None)
@given(corners.cases(), st.randoms(use_true_random=False))
def test_a_row_gives_the_same_token_in_any_batch(case: Case, random) -> None:
    chosen, members = on_host(case), list(range(len(case.params)))
    random.shuffle(members)
    for part in (members[: len(members) // 2], members[len(members) // 2 :]):
        if part:
            assert on_host(case.part(part)) == on_device(case.part(part)) == [chosen[i] for i in part]


@settings(max_examples=80, deadline=None)
@given(corners.cases())
def test_log_probabilities_are_numbers(case: Case) -> None:
    host = verify.accept(case.step, case.logits.copy(), case.history)
    elsewhere = verify_torch.accept(case.step, torch.from_numpy(case.logits.copy()), case.history)
    assert len(host.log_probs) == sum(p.return_log_probs for p in case.params)
    assert (host.log_probs <= 1e-6).all()
    assert (host.log_probs >= -np.float32(LARGEST)).all()
    np.testing.assert_allclose(elsewhere.log_probs, host.log_probs, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(corners.cases(), st.integers(0, 3))
def test_a_row_with_nan_is_broken_and_no_other_can_tell(case: Case, which: int) -> None:
    expected, broken = on_host(case), which % len(case.params)
    case.logits[broken, -1] = np.nan
    expected[broken] = BROKEN
    assert on_host(case) == on_device(case) == expected
    for accept, logits in (
        (verify.accept, case.logits.copy()),
        (verify_torch.accept, torch.from_numpy(case.logits.copy())),
    ):
        slot = case.step.slot[broken]
        with pytest.raises(LogitsError, match=rf"sequence {broken} in slot {slot}\b"):
            accept(case.step, logits, case.history)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_behind_a_draft_that_is_not_accepted_says_nothing(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, return_log_probs=True)
    step = pass_of([params], [0], np.zeros(1), np.zeros(1), np.array([5]))
    step = type(step)(
        **vars(step)
        | {"row_count": np.array([2]), "draft_count": np.array([1]), "token_ids": np.array([5, 7], dtype=np.int32)}
    )
    logits = np.full((2, 9), -50, dtype=np.float32)
    logits[0, 3], logits[1, 2] = 50, np.nan
    history = TokenHistory(1, 8)
    history.write(step)
    for result in (
        verify.accept(step, logits.copy(), history),
        verify_torch.accept(step, torch.from_numpy(logits.copy()), history),
    ):
        assert (result.accepted.tolist(), result.next_token.tolist()) == ([0], [3])
        assert np.isfinite(result.log_probs).all()


def support_of(case: Case) -> tuple[set[int], set[int]]:
    """Tokens that are surely of the support of a single row, and those that may be; naively, in float64."""
    (params,), row = case.params, case.logits[0].astype(np.float64)
    position = int(case.step.past_length[0]) + 1
    history = case.history.tokens[case.step.slot[0], :position].tolist()
    row = np.minimum(row, LARGEST)
    if np.isneginf(row).all():
        row[0] = 0
    best = int(case.logits[0].argmax()) if not np.isneginf(case.logits[0]).all() else 0
    for v in set(history):
        if np.isfinite(row[v]):
            changed = row[v] / params.repetition_penalty if row[v] > 0 else row[v] * params.repetition_penalty
            row[v] = np.clip(changed, -LARGEST, LARGEST)
    output = history[case.prompt_length[0] :]
    for v in set(output):
        if np.isfinite(row[v]):
            penalty = params.presence_penalty + params.frequency_penalty * output.count(v)
            row[v] = np.clip(row[v] - penalty, -LARGEST, LARGEST)
    if position - case.prompt_length[0] < params.min_tokens:
        row[list(params.end_ids)] = -np.inf
    for word in params.bad_words:
        if list(word[:-1]) == history[len(history) - len(word) + 1 :]:
            row[word[-1]] = -np.inf
    if np.isneginf(row).all():
        row[best] = 0
    scaled = (row - row.max()) / params.temperature
    doubt = 1e-5 + 2.0**-20 * np.minimum(abs(row.max()) / params.temperature, FAR)
    sure = maybe = scaled > -np.inf
    sure = scaled > -600
    if params.min_p:
        sure, maybe = sure & (scaled > np.log(params.min_p) + doubt), maybe & (scaled >= np.log(params.min_p) - doubt)
    if params.top_k:
        ahead = np.array([(scaled[maybe] > s + doubt).sum() for s in scaled])
        surely_ahead = np.array([(scaled[maybe] > s - doubt).sum() for s in scaled])
        sure, maybe = sure & (surely_ahead <= params.top_k), maybe & (ahead < params.top_k)
    if 0 < params.top_p < 1:
        weight = np.exp(scaled)
        most, least = weight[maybe].sum(), max(weight[sure].sum(), weight.max())
        before = np.array([weight[maybe & (scaled > s - doubt)].sum() for s in scaled])
        surely_before = np.array([weight[sure & (scaled > s + doubt)].sum() for s in scaled])
        slack = 1e-5 + 4 * doubt
        sure = sure & ((before - np.exp(scaled)) / least < params.top_p - slack)
        maybe = maybe & (surely_before / most < params.top_p + slack)
    return set(np.flatnonzero(sure)), set(np.flatnonzero(maybe))


@settings(max_examples=200, deadline=None)
@given(corners.cases(most=1).filter(lambda case: case.params[0].temperature >= GREEDY_BELOW))
def test_the_support_is_that_of_a_naive_reference(case: Case) -> None:
    """The logits are changed in place: what is finite after it may be drawn."""
    step, left = case.step, case.logits.copy()
    (chosen,) = verify.choose(step, verify.decided_rows(step), left, case.history.tokens[step.slot])
    sure, maybe = support_of(case)
    drawn = set(np.flatnonzero(np.isfinite(left[0])))
    assert chosen in drawn
    assert sure <= drawn <= maybe


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=9), corners.temperatures, st.integers(0, 99))
def test_a_draw_is_the_naive_race_at_any_temperature(logits: list[float], temperature: float, seed: int) -> None:
    case = single(logits, temperature=temperature, seed=seed)
    expected = int(np.argmax(logits))
    if temperature >= GREEDY_BELOW:
        quotient = case.logits[0].astype(np.float64) / temperature
        scores = np.sort(quotient - np.log(exponentials(seed, 1, len(logits))))
        if scores[-1] - scores[-2] < 1e-6 * max(1, abs(quotient).max()):
            return  # too close to tell in float32
        expected = int((quotient - np.log(exponentials(seed, 1, len(logits)))).argmax())
    assert token(case) == expected


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 9.9e-6])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}], ids=str)
def test_a_tiny_temperature_is_argmax(temperature: float, more: dict[str, float]) -> None:
    assert token(single([1.0, 30.0, 29.999, -5.0], temperature=temperature, **more)) == 1


@pytest.mark.parametrize("size", [3e38, -3e38, 1e20])
def test_equal_logits_of_any_size_are_drawn_alike(size: float) -> None:
    rest = [-LARGEST] * 4
    drawn = [token(single([size, size, *rest], temperature=1.0, seed=s)) for s in range(64)]
    assert drawn == [token(single([0.0, 0.0, *rest], temperature=1.0, seed=s)) for s in range(64)]
    assert len(set(drawn)) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_where_everything_is_forbidden_the_likeliest_token_is_left(temperature: float) -> None:
    logits = [-1.0, 4.0, 2.0]
    everything = tuple((t,) for t in range(3))
    assert token(single(logits, temperature=temperature, bad_words=everything)) == 1
    assert token(single(logits, temperature=temperature, min_tokens=9, end_ids=(0, 1, 2), top_p=0.5)) == 1
    assert token(single([-np.inf] * 3, temperature=temperature)) == 0
    assert token(single([-np.inf, 2.0, -np.inf], temperature=temperature, bad_words=((1,),))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_that_overflow_keep_forbidden_tokens_forbidden(temperature: float) -> None:
    for asked in (
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 3e38},
        {"presence_penalty": -3e38, "frequency_penalty": -3e38},
    ):
        case = single([-np.inf, 3.0, -np.inf], history=(0, 0, 2, 1), temperature=temperature, **asked)
        assert token(case) == 1
    rising = single([-3.0, 2.0, 5.0], history=(0, 0), temperature=temperature, presence_penalty=-3e38)
    assert token(rising) == 0
