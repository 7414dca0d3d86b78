"""Names of TensorRT-LLM's backend: off-values pass, on-values are refused by name, and asked outputs come."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.coordinator.foreign import FOREIGN
from python_backend.coordinator.interface import INPUTS, TABLE, complete
from python_backend.coordinator.request import RequestError, parse

TYPES = {"FP16": np.float16, "UINT8": np.uint8, "UINT64": np.uint64, "STRING": np.object_, "BOOL": np.bool_}
TYPES |= {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
BY_NAME = {tensor.name: tensor for tensor in INPUTS}
WHOLE = {"image_input", "image_bytes_input", "video_bytes_input", "prompt_embedding_table", "lora_weights"}
WHOLE |= {"lora_config"}  # tensors whose mere presence means something
HARMLESS = {"use_draft_logits", "return_kv_cache_reuse_stats"}


def values(name, *elements):
    """A tensor of the input's type and rank; no elements: an empty one."""
    tensor = BY_NAME[name]
    array = np.array(elements, dtype=TYPES[tensor.type])
    return array.reshape((1,) * (len(tensor.dims) - 1) + array.shape)


def off(name):
    return values(name) if name in WHOLE else values(name, b"" if BY_NAME[name].type == "STRING" else 0)


def on(name):
    return values(name, b"x" if BY_NAME[name].type == "STRING" else 1)


def test_foreign_inputs_are_those_of_the_table_that_have_no_field():
    assert FOREIGN.keys() < BY_NAME.keys()


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_off_values_pass(name):
    assert parse({name: off(name)}, {}) == parse({}, {})


@pytest.mark.parametrize("name", sorted(set(FOREIGN) - WHOLE))
def test_off_values_pass_as_request_parameters(name):
    assert parse({}, {name: off(name)[0]}) == parse({}, {})


@pytest.mark.parametrize("name", sorted(FOREIGN.keys() - HARMLESS))
def test_on_values_are_refused_by_name(name):
    with pytest.raises(RequestError, match=f"^{name} is ") as caught:
        parse({name: on(name)}, {})
    assert caught.value.code == "INVALID_ARG"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_tensor_of_zeros_is_a_tensor(name):
    with pytest.raises(RequestError, match=f"^{name} is "):
        parse({name: values(name, 0, 0, 0)}, {})


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_changes_no_output_is_accepted(name):
    assert parse({name: on(name)}, {}) == parse({}, {})


def test_one_answer_a_request():
    assert parse({"num_return_sequences": np.array([1], np.int32)}, {}).num_return_sequences == 1
    with pytest.raises(RequestError, match="num_return_sequences is '2'"):
        parse({"num_return_sequences": np.array([2], np.int32)}, {})


def test_min_length_is_min_tokens():
    assert parse({"min_length": np.array([5], np.int32)}, {}).min_tokens == 5
    both = {"min_length": np.array([5], np.int32), "min_tokens": np.array([7], np.int32)}
    assert parse(both, {}).min_tokens == 7


SAID = {"text_output": np.array([b"a"], np.object_), "num_input_tokens": np.array([3], np.int32)}


def test_who_names_no_output_gets_what_there_is():
    assert complete(SAID, TABLE, batched=True).keys() == SAID.keys()


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_output_that_is_named_comes(name):
    answer = complete(SAID, [name], batched=True)[name]
    assert answer.ndim == len(TABLE[name].dims) + TABLE[name].batched
    assert answer.dtype == TYPES[TABLE[name].type]


def test_a_batched_models_numbers_have_the_batch_axis_and_its_text_has_none():
    batched, plain = complete(SAID, TABLE, batched=True), complete(SAID, TABLE, batched=False)
    assert batched["num_input_tokens"].tolist() == [[3]]
    assert plain["num_input_tokens"].tolist() == [3]
    assert batched["text_output"].tolist() == plain["text_output"].tolist() == [b"a"]


def test_log_probs_have_the_shape_of_the_ensembles():
    said = {"output_log_probs": np.zeros(4, np.float32), "cum_log_probs": np.zeros(1, np.float32)}
    shapes = {name: array.shape for name, array in complete(said, TABLE, batched=True).items()}
    assert shapes == {"output_log_probs": (1, 1, 4), "cum_log_probs": (1, 1)}


def test_an_empty_answer_stays_empty():
    assert complete({}, ["text_output"], batched=True) == {}
