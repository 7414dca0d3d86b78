"""NVIDIA's `end_to_end_grpc_client.py` of several releases, message for message, and the names that it addresses.

Read in commits bd57713 and 2b14f89 of two forks and 0ec6c0c of `tensorrtllm_backend`, and in 2a9abd9 of `TensorRT-LLM`.
They carry no release; the one given to each is that of its tensors. The calls below are the ones they make: the same
tensors in the same types and shapes, one stream a prompt that the client closes at once, its reading of each response.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients import transport
from python_backend.coordinator.interface import TABLE

pytestmark = pytest.mark.server

PROMPT = "one two three four one two three four one two three four one two"
TOKENS = 12
MODELS = ("ensemble", "tensorrt_llm_bls", "angelspec")
ENSEMBLES = MODELS[:1]
RELEASES = ("0.10", "0.12", "0.14", "0.18")
TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
BLOCKS = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")
DRAFTS = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
Arrays = Mapping[str, np.ndarray]


def scalar(value: Any, dtype: type) -> np.ndarray:
    return np.array([[value]], dtype=dtype)


def inputs_of(release: str, streaming: bool, **options: Any) -> dict[str, np.ndarray]:
    """What the client of a release sends where its user gives a prompt, -o, temperature 0 and perhaps more."""
    text = np.array([[PROMPT]]).astype(object)
    inputs = {
        "text_input": text,
        "max_tokens": np.ones_like([[PROMPT]]).astype(np.int32) * TOKENS,
        "stream": scalar(streaming, bool),
        "beam_width": scalar(1, np.int32),
        "temperature": scalar(0.0, np.float32),
    }
    if release in ("0.14", "0.18"):
        inputs["exclude_input_in_output"] = scalar(False, bool)
    return inputs | options


def outputs_of(release: str, perf: bool = False) -> list[str] | None:
    """What it asks for by name; nothing in the older ones."""
    if release in ("0.10", "0.12"):
        return None
    return ["text_output", *((*BLOCKS, *TIMES, *DRAFTS) if perf else ())]


def responses(server, model: str, inputs: Arrays, outputs: list[str] | None = None, request_id: str = "") -> list[Any]:
    """One stream, closed by the client as soon as it has sent: the server ends it after the last response."""
    said: queue.Queue[Any] = queue.Queue()
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(callback=lambda result, error: said.put(error or result))
    tensors = []
    for name, array in inputs.items():
        tensors.append(triton_grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    named = [triton_grpc.InferRequestedOutput(name) for name in outputs] if outputs else None
    client.async_stream_infer(model, tensors, outputs=named, request_id=request_id)
    client.stop_stream()
    client.close()
    return [said.get_nowait() for _ in range(said.qsize())]


def refused(server, model: str, inputs: Arrays) -> str:
    (error,) = responses(server, model, inputs)
    assert isinstance(error, InferenceServerException)
    return error.message()


def text_of(release: str, results: list[Any]) -> str:
    """As the client of that release puts the text together."""
    text = ""
    for result in results:
        assert not isinstance(result, InferenceServerException), result.message()
        if release == "0.12":
            assert result.as_numpy("batch_index")[0][0] == 0
        text += result.as_numpy("text_output")[0].decode("utf-8")
    return text


@pytest.fixture(scope="module")
def expected(server) -> str:
    settings = {"text_input": PROMPT, "max_tokens": TOKENS, "temperature": 0.0}
    return transport.generate(settings, server.http_url).text


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", RELEASES)
def test_nvidias_client_gets_its_text(server, expected, release, model, streaming):
    results = responses(server, model, inputs_of(release, streaming), outputs_of(release))
    echo = PROMPT if release in ("0.14", "0.18") and not streaming else ""  # as its --check-outputs wants it
    assert text_of(release, results) == echo + expected
    assert (len(results) > 1) == streaming


@pytest.mark.parametrize("model", MODELS)
def test_nvidias_client_reads_the_metrics_of_0_18(server, expected, model):
    inputs = inputs_of("0.18", True, return_perf_metrics=scalar(True, bool))
    results = responses(server, model, inputs, outputs_of("0.18", perf=True))
    assert text_of("0.18", results) == expected
    for result in results:
        for name in (*BLOCKS, *TIMES, *DRAFTS):
            assert result.as_numpy(name)[0][0] >= 0
    times = [int(results[-1].as_numpy(name)[0][0]) for name in TIMES]
    assert times == sorted(times)
    assert times[0] > 0


@pytest.mark.parametrize("model", MODELS)
def test_log_probs_of_one_beam(server, model):
    inputs = inputs_of("0.14", False, return_log_probs=scalar(True, bool))
    (result,) = responses(server, model, inputs, ["text_output", "cum_log_probs", "output_log_probs"])
    log_probs = result.as_numpy("output_log_probs")
    assert log_probs.shape == (1, 1, TOKENS)
    assert result.as_numpy("cum_log_probs")[0][0] == pytest.approx(log_probs.sum(), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_nvidias_clients_remaining_options(server, expected, model):
    options = {
        "num_return_sequences": scalar(1, np.int32),
        "num_draft_tokens": scalar(4, np.int32),
        "use_draft_logits": scalar(True, bool),
        "return_kv_cache_reuse_stats": scalar(True, bool),
        "repetition_penalty": scalar(1.0, np.float32),
        "presence_penalty": scalar(0.0, np.float32),
        "frequency_penalty": scalar(0.0, np.float32),
        "min_length": scalar(1, np.int32),
        "random_seed": scalar(0, np.uint64),
        "end_id": scalar(2, np.int32),
        "pad_id": scalar(2, np.int32),
        "bad_words": np.array([[""]], dtype=object),
        "stop_words": np.array([["never seen"]], dtype=object),
    }
    results = responses(server, model, inputs_of("0.18", True, **options), ["text_output", *BLOCKS, "sequence_index"])
    assert text_of("0.18", results) == expected
    assert all(result.as_numpy("sequence_index")[0][0] == 0 for result in results)


@pytest.mark.parametrize("model", MODELS)
def test_every_output_can_be_asked_for_by_name(server, model):
    missing = {"speculation"} if model in ENSEMBLES else set()
    names = sorted(TABLE.keys() - missing)[:-1]  # one less than all: whoever asks for all is taken for asking nothing
    for result in responses(server, model, inputs_of("0.10", True), names):
        assert {output.name for output in result.get_response().outputs} == set(names)


ON = {
    "num_return_sequences": scalar(2, np.int32),
    "beam_width": scalar(2, np.int32),
    "return_context_logits": scalar(True, bool),
    "return_generation_logits": scalar(True, bool),
    "decoder_text_input": np.array([["x"]], dtype=object),
    "image_input": np.zeros((1, 1, 3, 2, 2), dtype=np.float16),
    "image_bytes_input": np.zeros((1, 1, 2, 2, 3), dtype=np.uint8),
    "image_url_input": np.array([["http://x"]], dtype=object),
    "image_sizes_input": np.ones((1, 1, 2), dtype=np.int64),
    "video_bytes_input": np.zeros((1, 1, 2, 2, 3), dtype=np.uint8),
    "prompt_embedding_table": np.zeros((1, 2, 2), dtype=np.float16),
    "prompt_vocab_size": scalar(4, np.int32),
    "prompt_table_extra_id": scalar(4, np.uint64),
    "embedding_bias_words": np.array([["x"]], dtype=object),
    "embedding_bias_weights": scalar(1.0, np.float32),
    "lora_task_id": scalar(1, np.uint64),
    "lora_weights": np.zeros((1, 1, 2), dtype=np.float16),
    "lora_config": np.zeros((1, 1, 3), dtype=np.int32),
    "guided_decoding_guide_type": np.array([["json"]], dtype=object),
    "guided_decoding_guide": np.array([["{}"]], dtype=object),
}


@pytest.mark.parametrize("model", MODELS[::2])
@pytest.mark.parametrize("name", sorted(ON))
def test_what_is_not_served_is_refused_by_name(server, model, name):
    assert f"{name} is " in refused(server, model, inputs_of("0.18", False) | {name: ON[name]})


@pytest.mark.parametrize("model", MODELS[::2])
def test_off_values_of_all_of_them_pass_together(server, expected, model):
    zero = {name: np.zeros_like(array) for name, array in ON.items() if array.shape == (1, 1) and array.dtype != object}
    none = {name: array[:, :0] for name, array in ON.items() if array.ndim > 2}
    empty = {name: np.array([[""]], dtype=object) for name, array in ON.items() if array.dtype == object}
    off = zero | none | empty | {"beam_width": scalar(1, np.int32)}
    assert off.keys() == ON.keys()
    assert text_of("0.10", responses(server, model, inputs_of("0.10", False) | off)) == expected


@pytest.mark.parametrize("model", ENSEMBLES)
def test_an_ensemble_keeps_id_parameters_codes_and_deadline(server, expected, model):
    url = f"http://{server.http_url}/v2/models/{model}/generate"
    body = {"text_input": PROMPT, "max_tokens": TOKENS}
    answer = httpx.post(url, json=body | {"parameters": {"num_draft_tokens": 0}}, timeout=60).json()
    assert (answer["text_output"], answer["total_draft_tokens"]) == (expected, 0)
    answer = httpx.post(url, json=body | {"beam_width": 2}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"in ensemble '{model}', beam_width is '2'")
    long = {"text_input": PROMPT, "max_tokens": 1500, "min_tokens": 1500, "parameters": {"timeout": 500_000}}
    assert "deadline" in httpx.post(url, json=long, timeout=60).json()["error"]
    (result,) = responses(server, model, inputs_of("0.10", False), request_id="mine")
    assert result.get_response().id == "mine"


@pytest.mark.parametrize("model", ENSEMBLES)
def test_a_request_to_an_ensemble_is_stopped_by_its_id(server, model):
    """What is left to a client: Triton does not tell a step of an ensemble that the client has gone."""
    long = {"max_tokens": scalar(1500, np.int32), "min_tokens": scalar(1500, np.int32)}
    ended: list[Any] = []
    asking = threading.Thread(
        target=lambda: ended.extend(responses(server, model, inputs_of("0.10", True, **long), request_id="77"))
    )
    asking.start()
    wait = threading.Event()
    while server.slots_in_use() == 0:
        wait.wait(0.05)
    assert "stopped on request" in responses(server, model, {"stop": scalar(True, bool)}, request_id="77")[0].message()
    asking.join(30)
    assert not asking.is_alive()
    assert isinstance(ended[-1], InferenceServerException)
    assert len(ended) < 1500


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "angelspec"])
def test_a_client_that_leaves_the_alias_frees_its_slot(server, model):
    long = inputs_of("0.10", True, max_tokens=scalar(1500, np.int32), min_tokens=scalar(1500, np.int32))
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    came = threading.Event()
    client.start_stream(lambda result, error: came.set())
    tensors = []
    for name, array in long.items():
        tensors.append(triton_grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    client.async_stream_infer(model, tensors)
    assert came.wait(60)
    client.stop_stream(cancel_requests=True)
    client.close()
    deadline = time.monotonic() + 20
    while server.slots_in_use():
        assert time.monotonic() < deadline, "the slot is still in use"
        time.sleep(0.1)
