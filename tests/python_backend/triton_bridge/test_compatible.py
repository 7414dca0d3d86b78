"""What the clients of TensorRT-LLM's backend send and read, through the coordinator's model without a server.

`end_to_end_grpc_client.py` of commits 0ec6c0c of `tensorrtllm_backend` and 2a9abd9 of `TensorRT-LLM`: the tensors that
it sends and how it reads each response.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from python_backend.coordinator.interface import TABLE
from tests.support.host import Letters, settings_for
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode
from tests.support.triton import Request

PROMPT, TOKENS = "abc", 12
EXPECTED = Letters().decode(toy_decode(Letters().encode(PROMPT), TOKENS))
METRICS = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from python_backend.coordinator.metrics import Metrics
    from python_backend.coordinator.service import Service
    from python_backend.triton_bridge.models import CoordinatorModel

    folder = tmp_path_factory.mktemp("compatible")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        settings = settings_for(["drafter_toy"], cache_dir=folder, budget={"policy": "fixed"})
        service = Service(settings, ToyTarget(), {"drafter_toy": ToyDrafter()}, Letters(), Metrics())
        running = CoordinatorModel(service, threading.Event(), {})
        yield running
        running.finalize()


def responses(model, streaming, requested=(), **options):
    """The outputs of each response to one prompt."""
    inputs = {
        "text_input": np.array([PROMPT.encode()], dtype=np.object_),
        "max_tokens": np.array([TOKENS], dtype=np.int32),
        "stream": np.array([streaming]),
        "beam_width": np.array([1], dtype=np.int32),
        "temperature": np.array([0.0], dtype=np.float32),
        "end_id": np.array([-1], dtype=np.int32),
    }
    request = Request(inputs | options, requested=requested)
    model.execute([request])
    assert request.sender.ended.wait(20)
    assert not request.errors
    return [response.outputs for response in request.sender.responses]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_the_client_that_asks_for_no_output_reads_text_and_batch_index(model, streaming):
    answers = responses(model, streaming)
    assert all(answer["batch_index"][0][0] == 0 for answer in answers)
    assert "".join(answer["text_output"][0].decode("utf-8") for answer in answers) == EXPECTED
    assert (len(answers) > 1) == streaming


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_the_client_that_asks_for_metrics_reads_them_in_every_response(model, streaming):
    options = {
        "num_return_sequences": np.array([1], dtype=np.int32),
        "exclude_input_in_output": np.array([False]),
        "return_perf_metrics": np.array([True]),
    }
    answers = responses(model, streaming, ["text_output", "sequence_index", *METRICS], **options)
    for answer in answers:
        assert answer["sequence_index"][0][0] == 0
        assert all(answer[name][0][0] >= 0 for name in METRICS)
    text = "".join(answer["text_output"][0].decode("utf-8") for answer in answers)
    assert text == EXPECTED if streaming else text.endswith(EXPECTED) and len(text) == len(PROMPT) + len(EXPECTED)


def test_the_step_of_an_ensemble_gets_every_output_that_it_maps(model):
    mapped = sorted(TABLE.keys() - {"speculation"})
    for answer in responses(model, True, mapped):
        assert answer.keys() >= set(mapped)
