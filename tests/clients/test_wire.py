"""What a client sends and how it reads what comes back, protocol by protocol."""

import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor

from clients import wire
from clients.wire import Answer, Chunk, ServerError, Speculation


def tensors(settings):
    return {tensor.name(): tensor for tensor in wire.encode_grpc(settings)}


REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


@pytest.mark.parametrize("model", [wire.MODEL, wire.INFER_MODEL])
def test_the_server_has_every_input_that_a_client_sends_with_its_type_and_length(model):
    config = text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    declared = {tensor.name: tensor for tensor in config.input}
    for name, datatype in wire.INPUTS.items():
        expected = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
        assert model_config_pb2.DataType.Name(declared[name].data_type) == expected, name
        assert list(declared[name].dims) == [-1 if name in wire.LISTS else 1], name


def test_grpc_scalars_have_a_batch_axis_and_the_declared_type():
    sent = tensors({"max_tokens": 5, "temperature": 0, "seed": 2**64 - 1, "thinking": True, "workload": "code"})
    assert all(tensor.shape() == [1, 1] for tensor in sent.values())
    assert {name: tensor.datatype() for name, tensor in sent.items()} == {
        "max_tokens": "INT32",
        "temperature": "FP32",
        "seed": "UINT64",
        "thinking": "BOOL",
        "workload": "BYTES",
    }
    assert np.frombuffer(sent["seed"]._get_content(), dtype=np.uint64).tolist() == [2**64 - 1]


def test_grpc_lists_keep_their_length_and_their_utf8():
    sent = tensors({"stop_words": ["é", "\n\n"], "input_ids": [3, 1, 4]})
    assert sent["stop_words"].shape() == [1, 2]
    assert [b.decode() for b in deserialize_bytes_tensor(sent["stop_words"]._get_content())] == ["é", "\n\n"]
    assert sent["input_ids"].shape() == [1, 3]


def test_infer_body_is_not_batched():
    body = wire.encode_infer({"text_input": "Hi", "stop_words": ["a", "b"]})
    assert body == {
        "inputs": [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]},
            {"name": "stop_words", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        ]
    }


@pytest.mark.parametrize("encode", [wire.encode_grpc, wire.encode_generate, wire.encode_infer])
def test_a_misspelt_setting_is_named(encode):
    with pytest.raises(ValueError, match="'temprature' is not a setting"):
        encode({"temprature": 1.0})


@pytest.mark.parametrize("encode", [wire.encode_grpc, wire.encode_generate, wire.encode_infer])
@pytest.mark.parametrize(("name", "value"), [("max_tokens", 2**31), ("seed", 2**64), ("seed", -1)])
def test_a_number_beyond_the_type_is_refused_before_it_is_sent(encode, name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}: it must lie between"):
        encode({name: value})


def test_generate_reads_scalars_and_lists_alike():
    one = wire.decode_generate({"text_output": "a", "output_ids": 5, "finish_reason": "", "model_name": "angelspec"})
    two = wire.decode_generate({"text_output": "a", "output_ids": [5, 6], "finish_reason": ""})
    assert one == Chunk("a", (5,))
    assert two == Chunk("a", (5, 6))


def test_only_the_last_response_has_a_summary():
    last = {
        "text_output": "!",
        "output_ids": [9],
        "finish_reason": "length",
        "num_input_tokens": 4,
        "num_output_tokens": 2,
        "speculation": json.dumps({"mean_acceptance_length": 2.0, "num_drafts": 1, "a later field": 1}),
        "output_log_probs": [-0.5, -0.25],
        "cum_log_probs": -0.75,
    }
    chunk = wire.decode_generate(last)
    assert chunk.summary is not None
    assert chunk.summary.finish_reason == "length"
    assert (chunk.summary.num_input_tokens, chunk.summary.num_output_tokens) == (4, 2)
    assert chunk.summary.speculation == Speculation(mean_acceptance_length=2.0, num_drafts=1)
    assert chunk.log_probs == (-0.5, -0.25)
    assert chunk.summary.cum_log_probs == -0.75
    assert wire.decode_generate({"text_output": "!", "finish_reason": ""}).summary is None


def test_a_response_of_another_model_is_refused():
    with pytest.raises(ServerError, match="no 'text_output'"):
        wire.decode_infer({"outputs": [{"name": "logits", "data": [0.0]}]})


def test_an_answer_is_the_sum_of_its_chunks():
    answer = Answer()
    for chunk in (Chunk("He", (1,)), Chunk("", ()), Chunk("llo", (2, 3))):
        answer.add(chunk)
    assert (answer.text, answer.token_ids, answer.summary) == ("Hello", [1, 2, 3], None)
    assert answer.first_token_s is not None
    assert answer.first_token_s <= answer.total_s


def test_summed_rates_are_weighted_by_verify_passes():
    total = wire.total(
        [
            Speculation(
                mean_acceptance_length=3.0, num_drafts=1, num_accepted_tokens=2, acceptance_per_position=(1, 1)
            ),
            Speculation(mean_acceptance_length=1.0, num_drafts=3, num_accepted_tokens=0),
        ]
    )
    assert total.mean_acceptance_length == 1.5
    assert total.acceptance_per_position == (0.25, 0.25)


def test_a_sum_of_nothing_has_no_passes():
    assert wire.total([]) == Speculation()
