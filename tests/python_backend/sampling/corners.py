"""Strategies over the corners of float32: logits, and what a request may ask for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from python_backend.protocol import Part, TargetStep
from python_backend.sampling.corners import LARGEST
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.params import SamplingParams, columns

TINY = float(np.finfo(np.float32).tiny)  # the smallest normal
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
VOCABULARIES = (1, 2, 3, 7, 63, 64, 65, 130)
LENGTH = 24


def corners(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from([float(np.float32(v)) for v in values])


def both(*values: float) -> tuple[float, ...]:
    return (*values, *(-v for v in values))


finite_logits = corners(0, *both(DENORMAL, TINY, 1e-3, 1, 1 + 2**-23, 30, 88.8, 1e4, 2**24, 1e9, 1e30, 3e38, LARGEST))
logits = finite_logits | st.just(np.inf) | st.just(-np.inf) | st.floats(width=32, allow_nan=False)
temperatures = corners(0, DENORMAL, TINY, 1e-38, 9.9e-6, 1e-5, 1e-3, 0.7, 1, 2, 1e5, 1e30, 3e38, LARGEST)
probabilities = corners(0, DENORMAL, TINY, 1e-10, 0.1, 0.5, 0.9, BELOW_ONE, 1)
repetitions = corners(TINY, 1e-30, 1e-3, 0.5, BELOW_ONE, 1, 1.3, 1e3, 1e30, 3e38, LARGEST)
penalties = corners(0, *both(DENORMAL, 1e-10, 0.5, 2, 1e10, 3e38, LARGEST))
counts = st.sampled_from([0, 1, 2, 10, 2**31 - 1])


def tokens(vocabulary: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=most).map(tuple)


@st.composite
def params(draw: st.DrawFn, vocabulary: int) -> SamplingParams:
    """One request. Each feature is off half of the time, so that few of them meet."""

    def maybe(strategy: st.SearchStrategy, off: object) -> object:
        return draw(strategy) if draw(st.booleans()) else off

    everything = tuple(range(vocabulary))
    return SamplingParams(
        temperature=draw(temperatures),
        top_k=maybe(st.sampled_from([1, 2, vocabulary - 1, vocabulary, vocabulary + 1, 2**31 - 1]), 0),
        top_p=maybe(probabilities, 0.0),
        min_p=maybe(probabilities, 0.0),
        repetition_penalty=maybe(repetitions, 1.0),
        presence_penalty=maybe(penalties, 0.0),
        frequency_penalty=maybe(penalties, 0.0),
        seed=draw(st.sampled_from([0, 1, 2**32, 2**64 - 1])),
        min_tokens=maybe(counts, 0),
        end_ids=draw(st.just(()) | st.just(everything) | tokens(vocabulary, 4)),
        bad_words=maybe(
            st.lists(tokens(vocabulary, 3), max_size=4).map(tuple) | st.just(tuple((t,) for t in everything)), ()
        ),
        return_log_probs=draw(st.booleans()),
    )


class Case(NamedTuple):
    """A pass of single rows: one logits row a sequence."""

    step: TargetStep
    logits: npt.NDArray[np.float32]
    history: TokenHistory
    params: list[SamplingParams]
    prompt_length: list[int]

    def part(self, members: list[int]) -> Case:
        """The same sequences in a pass of their own."""
        chosen, prompts = [self.params[i] for i in members], [self.prompt_length[i] for i in members]
        index = np.array(members)
        step = pass_of(chosen, prompts, self.step.slot[index], self.step.past_length[index], self.step.token_ids[index])
        return Case(step, self.logits[index], self.history, chosen, prompts)


def pass_of(
    requests: list[SamplingParams],
    prompt_length: list[int],
    slot: npt.NDArray[np.int32],
    past: npt.NDArray[np.int32],
    token_ids: npt.NDArray[np.int32],
) -> TargetStep:
    parts = [Part(*place) for place in zip(slot, past, token_ids[:, None], strict=True)]
    return TargetStep.of(parts, **columns(requests, prompt_length))


@st.composite
def cases(draw: st.DrawFn, values: st.SearchStrategy[float] = logits, most: int = 4) -> Case:
    """Rows of few different values, so that there are ties; histories of few different tokens."""
    vocabulary, batch = draw(st.sampled_from(VOCABULARIES)), draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    palettes = [draw(st.lists(values, min_size=1, max_size=5)) for _ in range(batch)]
    rows = np.array([rng.choice(np.array(p, dtype=np.float32), vocabulary) for p in palettes])
    requests = [draw(params(vocabulary)) for _ in range(batch)]
    past = rng.integers(0, LENGTH - 1, batch)
    prompts = rng.integers(0, past + 2).tolist()
    history = TokenHistory(batch + 1, LENGTH)
    history.tokens[:] = rng.integers(0, min(vocabulary, 8), history.tokens.shape)
    step = pass_of(requests, prompts, rng.permutation(batch + 1)[:batch], past, rng.integers(0, vocabulary, batch))
    history.write(step)
    return Case(step, rows, history, requests, prompts)
