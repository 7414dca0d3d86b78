"""What NVIDIA's own `tensorrt_llm` Triton model is asked for one sequence's verify pass, and what its answer means.

The tensors are those that `trtllm_engines/contracts/stock_model.json` records of the model's config.pbtxt, its engine
being built with `--speculative_decoding_mode draft_tokens_external`. A request carries all tokens of its
sequence: blocks of keys and values that an earlier one left are found again, and only the rest is computed. Its answer
is the drafts that equal the target's own tokens, up to the first that does not, and one more token of the target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engine import EngineError
from python_backend.protocol import Array, TargetStep, Tensors, row_starts
from python_backend.sampling.noise import philox
from python_backend.sampling.verify import banned_words

Tokens = npt.NDArray[np.int32]

OUTPUTS = ("output_ids", "sequence_length")
CALL = 2  # third counter word: the first two kinds are the race's
NO_WORD = -1


class Verify(NamedTuple):
    """One sequence of a step, as a request of its own."""

    tokens: Tokens  # [n] prompt and output, anchor included
    drafts: Tokens  # [d] to be verified
    tensors: Tensors  # with the batch axis of 1 that the model has


def verify_of(step: TargetStep, i: int, history: Tokens) -> Verify:
    """The request for sequence i. history: [max_length], the tokens of its slot, this step's rows included."""
    end = int(step.past_length[i] + step.row_count[i])
    first = end - int(step.draft_count[i])  # position of the first token that is asked for
    drafts, tokens = history[first:end], history[:first]
    forbidden = list(banned_words(step)[i])
    allowed_from = int(step.prompt_length[i] + step.min_tokens[i])
    if step.min_tokens[i] and first < allowed_from:  # no draft beyond, so that what is forbidden holds for all
        drafts = drafts[: allowed_from - first - 1]
        starts = row_starts(step.end_id_count)
        forbidden += [step.end_ids[k : k + 1] for k in range(starts[i], starts[i + 1])]
    tensors = {
        "input_ids": tokens[None].copy(),
        "input_lengths": np.array([[first]], dtype=np.int32),
        "request_output_len": np.array([[len(drafts) + 1]], dtype=np.int32),
        "exclude_input_in_output": np.array([[False]]),
        **_sampling(step, i, first),
    }
    if len(drafts):
        tensors["draft_input_ids"] = drafts[None].copy()
    if forbidden:
        tensors["bad_words_list"] = word_list(forbidden)
    return Verify(tokens, drafts, tensors)


def new_tokens(verify: Verify, outputs: Tensors) -> Tokens:
    """[1 + accepted] tokens that the target emits. Raises EngineError for an answer that cannot be one."""
    length = int(outputs["sequence_length"].reshape(-1)[0])
    emitted = outputs["output_ids"].reshape(-1)[len(verify.tokens) : length].astype(np.int32)
    accepted = len(emitted) - 1
    if not 0 <= accepted <= len(verify.drafts) or (emitted[:accepted] != verify.drafts[:accepted]).any():
        raise EngineError(
            f"the stock model emitted {emitted.tolist()} for the drafts {verify.drafts.tolist()}: expected some of "
            "them, from the first on, and one more token; was its engine built for external draft tokens?"
        )
    return emitted


def word_list(words: list[Tokens]) -> Array:
    """[1, 2, n] int32: the words one after the other, and where each ends, filled up with -1."""
    flat = np.concatenate(words)
    ends = np.full(len(flat), NO_WORD)
    ends[: len(words)] = np.cumsum([len(word) for word in words])
    return np.stack((flat, ends))[None].astype(np.int32)


def _sampling(step: TargetStep, i: int, position: int) -> Tensors:
    """Only what is not the model's default. Every call draws with a seed of its own: with one for all, each would begin
    with the same random number."""
    wanted: dict[str, tuple[Array, float]] = {"repetition_penalty": (step.repetition_penalty, 1)}
    if step.temperature[i] == 0:
        tensors = {"runtime_top_k": np.array([[1]], dtype=np.int32)}
    else:
        tensors = {"temperature": step.temperature[i].reshape(1, 1), "seed": _seed(step.seed[i], position)}
        tensors["runtime_top_p"] = np.array(
            [[step.top_p[i] or 1]], dtype=np.float32
        )  # 0 without top_k means argmax there
        wanted |= {"runtime_top_k": (step.top_k, 0)}
    return tensors | {n: v[i].reshape(1, 1) for n, (v, usual) in wanted.items() if v[i] != usual}


def _seed(seed: np.uint64, position: int) -> Array:
    """[1, 1] uint64, a function of both."""
    counter = tuple(np.array([word], dtype=np.uint32) for word in (position, 0, CALL, 0))
    key = tuple(np.array([word], dtype=np.uint32) for word in divmod(int(seed), 1 << 32))
    high, low, *_ = philox(counter, key)  # type: ignore[arg-type]
    return (high.astype(np.uint64) << np.uint64(32) | low)[:, None]
