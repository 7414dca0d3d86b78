"""What the stock model is asked, and which of its answers are believed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype

from python_backend.engine import EngineError
from python_backend.protocol import Part, TargetStep
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.params import SamplingParams, columns
from python_backend.settings import ROOT
from python_backend.triton_bridge.stock_tensors import OUTPUTS, new_tokens, verify_of, word_list
from tests.support.checkpoints import make_step

RECORD: dict[str, Any] = json.loads((ROOT / "trtllm_engines" / "contracts" / "stock_model.json").read_text())
STAND_IN = ROOT / "tests" / "fakes" / "stock" / "tensorrt_llm"


def verify(part: Part, prompt_length: int = 4, before: tuple[int, ...] = (), **params):
    step: TargetStep = make_step(part, **columns([SamplingParams(**params)], [prompt_length]))
    history = TokenHistory(4, 32)
    history.tokens[part.slot, : len(before)] = before
    history.write(step)
    return verify_of(step, 0, history.tokens[part.slot])


def test_a_request_carries_the_whole_text_and_the_drafts_apart() -> None:
    asked = verify(Part(2, 3, [13, 14, 15], drafts=2), before=(10, 11, 12)).tensors
    assert asked["input_ids"].tolist() == [[10, 11, 12, 13]]
    assert asked["input_lengths"].tolist() == [[4]]
    assert asked["draft_input_ids"].tolist() == [[14, 15]]
    assert asked["request_output_len"].tolist() == [[3]]
    assert asked["runtime_top_k"].tolist() == [[1]]
    assert all(tensor.shape[0] == 1 for tensor in asked.values())


def test_without_drafts_none_are_named_and_one_token_is_asked_for() -> None:
    asked = verify(Part(0, 0, [1, 2, 3])).tensors
    assert "draft_input_ids" not in asked
    assert asked["request_output_len"].tolist() == [[1]]


def test_only_what_a_request_changes_is_named() -> None:
    greedy = verify(Part(0, 0, [1])).tensors
    assert set(greedy) == {
        "input_ids", "input_lengths", "request_output_len", "exclude_input_in_output", "runtime_top_k",
    }  # fmt: skip
    sampled = verify(Part(0, 0, [1]), temperature=0.7, top_p=0.9, seed=5, repetition_penalty=1.2).tensors
    assert set(sampled) - set(greedy) == {"temperature", "runtime_top_p", "seed", "repetition_penalty"}
    assert "runtime_top_k" not in sampled
    assert sampled["runtime_top_p"].tolist() == [[np.float32(0.9)]]
    assert sampled["seed"].dtype == np.uint64


@pytest.mark.parametrize("top_k", [0, 5])
def test_sampling_from_all_tokens_says_so_since_nothing_means_argmax_there(top_k: int) -> None:
    sampled = verify(Part(0, 0, [1]), temperature=0.7, top_k=top_k).tensors
    assert sampled["runtime_top_p"].tolist() == [[1.0]]
    assert ("runtime_top_k" in sampled) == (top_k > 0)


def test_the_stand_in_has_the_tensors_that_are_recorded_of_upstreams_model() -> None:
    config = text_format.Parse((STAND_IN / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    for kind, tensors in (("inputs", config.input), ("outputs", config.output)):
        found = {}
        for tensor in tensors:
            assert not tensor.HasField("reshape") or (list(tensor.dims), list(tensor.reshape.shape)) == ([1], [])
            flags = {"scalar"} if tensor.HasField("reshape") else set()
            if kind == "inputs":
                flags |= {f for f, on in (("optional", tensor.optional), ("ragged", tensor.allow_ragged_batch)) if on}
            name = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
            found[tensor.name] = [name, list(tensor.dims), sorted(flags)]
        assert found == {
            n: [t, dims, [f for f in flags if f != "filled"]] for n, (t, dims, flags) in RECORD[kind].items()
        }


def test_every_tensor_that_is_asked_or_read_is_in_the_record() -> None:
    asked = verify(
        Part(0, 5, [1, 2, 3, 4], drafts=3),
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        min_tokens=4,
        end_ids=(8, 9),
        return_log_probs=True,
    ).tensors
    for name, tensor in asked.items():
        recorded, dims, _ = RECORD["inputs"][name]
        assert np_to_triton_dtype(tensor.dtype) == recorded, name
        assert len(tensor.shape) == 1 + len(dims), name
        assert all(d in (-1, size) for d, size in zip(dims, tensor.shape[1:], strict=True)), name
    assert {name for name, (_, _, flags) in RECORD["inputs"].items() if "optional" not in flags} <= set(asked)
    assert set(OUTPUTS) <= set(RECORD["outputs"])


def test_every_call_draws_with_a_seed_of_its_own() -> None:
    seeds = [
        int(verify(Part(0, past, [1]), temperature=1.0, seed=seed).tensors["seed"][0, 0])
        for past in (0, 1, 2)
        for seed in (5, 6, 2**63 + 5)
    ]
    assert len(set(seeds)) == 9
    assert seeds[0] == int(verify(Part(3, 0, [1]), temperature=1.0, seed=5).tensors["seed"][0, 0])


def test_end_tokens_are_forbidden_up_to_min_tokens_and_no_draft_is_verified_beyond() -> None:
    asked = verify(Part(0, 5, [1, 2, 3, 4], drafts=3), prompt_length=4, min_tokens=4, end_ids=(8, 9))
    assert asked.drafts.tolist() == [2]  # tokens 6 and 7 are asked for; from 8 on the text may end
    assert asked.tensors["bad_words_list"].tolist() == [[[8, 9], [1, 2]]]
    later = verify(Part(0, 7, [1, 2, 3], drafts=2), prompt_length=4, min_tokens=4, end_ids=(8, 9))
    assert later.drafts.tolist() == [2, 3]
    assert "bad_words_list" not in later.tensors


def test_banned_words_lie_one_after_the_other_with_their_ends() -> None:
    words = [np.array([5, 6], dtype=np.int32), np.array([7], dtype=np.int32)]
    assert word_list(words).tolist() == [[[5, 6, 7], [2, 3, -1]]]


@pytest.mark.parametrize(
    ("output", "expected"), [([9], [9]), ([2, 9], [2, 9]), ([2, 3, 9], [2, 3, 9])], ids=["none", "one", "all"]
)
def test_an_answer_is_the_accepted_drafts_and_one_token(output: list[int], expected: list[int]) -> None:
    asked = verify(Part(0, 0, [1, 2, 3], drafts=2))
    ids = [1, *output]
    outputs = {"output_ids": np.array([[[*ids, 0, 0]]]), "sequence_length": np.array([[len(ids)]])}
    assert new_tokens(asked, outputs).tolist() == expected


@pytest.mark.parametrize("output", [[], [3, 9], [2, 3, 9, 9]], ids=["nothing", "not a draft", "too many"])
def test_an_answer_that_cannot_be_one_is_refused(output: list[int]) -> None:
    asked = verify(Part(0, 0, [1, 2, 3], drafts=2))
    outputs = {"output_ids": np.array([[[1, *output]]]), "sequence_length": np.array([[1 + len(output)]])}
    with pytest.raises(EngineError, match=r"for the drafts \[2, 3\].*external draft tokens"):
        new_tokens(asked, outputs)
