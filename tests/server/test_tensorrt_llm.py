"""A whole server on a TensorRT-LLM target whose Session is the fake of `tests/fakes`: the runtime around it is real.

The tokens are those of the PyTorch engine on the same checkpoint, one at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from build_scripts.server import REPOSITORY, TARGET
from python_backend.settings import ROOT
from tests.server.conftest import ServerUnderTest
from tests.server.tiny import ask, plain_decoding, save_with_words
from tests.support.drafters import save_drafter
from tests.trtllm_engines.drafter_engines import save_spread, write_drafter_engines
from tests.trtllm_engines.engine_folder import write_engine
from trtllm_engines.export_drafter import export_all

pytestmark = pytest.mark.server

LOOKUP = "drafter_prompt_lookup"
FAKES = ROOT / "tests" / "fakes"
REQUESTS = [  # drafted for in the target's process: chat by a network, math by built engines; code by prompt lookup
    {"prompt": [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], "workload": "code"},
    {"prompt": list(range(20, 120)), "temperature": 0.8, "seed": 11, "workload": "chat"},
    {"prompt": [7, 7, 7, 9, 11, 13, 17], "workload": "chat"},
    {"prompt": list(range(40, 90)), "temperature": 0.7, "seed": 3, "workload": "math"},
    {"prompt": [5, 8, 5, 8, 5, 8], "workload": "math"},
    {"prompt": [9] * 30, "temperature": 1.0, "top_p": 0.8, "seed": 12},
    {"prompt": [1, 2, 3, 1, 2, 3, 1, 2], "temperature": 0.6, "top_k": 9, "seed": 2**63 + 1, "repetition_penalty": 1.3},
]
WRONG_ENGINES = [
    ({"dtype": {"sequence_length": "int64"}}, "input 'sequence_length' is int64, expected int32"),
    ({"shape": {"host_kv_cache_pool_pointers": [3, 2]}}, "has shape [3, 2], expected [1, 2]"),
    ({"drop": ["captured_3"]}, "output 'captured_3' (layer 3) is missing"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_words("llama3", tmp_path_factory.mktemp("tiny") / "llama3")


@pytest.fixture(scope="module")
def engine_folder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    return write_engine(tmp_path_factory.mktemp("engine"), checkpoint, captured=(1, 3))


@pytest.fixture(scope="module")
def drafter_folder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A random drafter that reads one of the captured layers."""
    return save_drafter("mtp", tmp_path_factory.mktemp("drafter"), checkpoint, feature_layers=(3,))


@pytest.fixture(scope="module")
def drafter_engines(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A random drafter as engines, which the fake TensorRT runs."""
    folder = tmp_path_factory.mktemp("engines")
    trained = save_spread("dspark", folder / "trained", checkpoint, layers=(1, 3))
    export_all(trained, checkpoint, folder / "onnx", "float32")
    return write_drafter_engines(folder / "onnx", folder / "built", sequences=4, context=264)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped one, but the target's process finds the fakes where TensorRT-LLM would be installed."""
    repository = tmp_path_factory.mktemp("repository")
    for folder in REPOSITORY.iterdir():
        if folder.name != TARGET:
            (repository / folder.name).symlink_to(folder)
    shutil.copytree(REPOSITORY / TARGET, repository / TARGET)
    model = repository / TARGET / "1" / "model.py"
    model.write_text(f"import sys\n\nsys.path += {[str(ROOT), str(FAKES)]}\n{model.read_text()}")
    return repository


@pytest.fixture(scope="module")
def trt_server(
    repository: Path, checkpoint: Path, engine_folder: Path, drafter_folder: Path, drafter_engines: Path
) -> Iterator[ServerUnderTest]:
    drafters = {
        "drafter_network": {"kind": "network", "process": "target", "folder": str(drafter_folder)},
        "drafter_engines": {"kind": "network", "process": "target", "folder": str(drafter_engines)},
        LOOKUP: {},
    }
    environment = {
        "ANGELSPEC_TARGET__ENGINE": "tensorrt_llm",
        "ANGELSPEC_TARGET__CHECKPOINT": str(checkpoint),
        "ANGELSPEC_TARGET__ENGINE_FOLDER": str(engine_folder),
        "ANGELSPEC_TARGET__FEATURE_LAYERS": "[1, 3]",
        "ANGELSPEC_DRAFTERS": json.dumps(drafters),
        "ANGELSPEC_ROUTES": json.dumps({"chat": "drafter_network", "code": LOOKUP, "math": "drafter_engines"}),
        "ANGELSPEC_COORDINATOR__MAX_SEQUENCES": "4",
        "ANGELSPEC_COORDINATOR__MAX_LENGTH": "256",
        "ANGELSPEC_COORDINATOR__PREFILL_ROWS": "64",
        "ANGELSPEC_BUDGET__POLICY": "fixed",
    }
    with ServerUnderTest(repository=repository, environment=environment) as running:
        yield running


def test_the_server_gives_the_tokens_of_the_torch_engine(trt_server: ServerUnderTest, checkpoint: Path) -> None:
    answers = [ask(trt_server, request) for request in REQUESTS]
    for request, answer in zip(REQUESTS, answers, strict=True):
        assert list(answer.token_ids) == plain_decoding(checkpoint, request)
        assert answer.summary.speculation.num_draft_tokens > 0
    assert sum(answer.summary.speculation.num_accepted_tokens for answer in answers) > 0


def test_a_prompt_that_was_read_once_is_held_with_what_its_drafter_reads(
    trt_server: ServerUnderTest, checkpoint: Path
) -> None:
    for request in (REQUESTS[1], REQUESTS[3]):  # a network, and engines
        ask(trt_server, request)
        before = trt_server.metric("angelspec_held_prompt_tokens_total")
        answer = ask(trt_server, request)
        assert trt_server.metric("angelspec_held_prompt_tokens_total") >= before + len(request["prompt"]) // 16 * 16
        assert list(answer.token_ids) == plain_decoding(checkpoint, request)
        assert answer.summary.speculation.num_draft_tokens > 0


def load_target(server: ServerUnderTest) -> str:
    """Load the target again, from the engine that is in its folder now. Returns the server's complaint."""
    models = f"http://{server.http_url}/v2/repository/models/{TARGET}"
    httpx.post(f"{models}/unload", timeout=60).raise_for_status()
    answer = httpx.post(f"{models}/load", timeout=60)
    return "" if answer.is_success else str(answer.json()["error"])


def test_engines_that_break_the_contract_are_refused_and_a_right_one_serves_again(
    trt_server: ServerUnderTest, checkpoint: Path, engine_folder: Path
) -> None:
    for wrong, message in WRONG_ENGINES:
        write_engine(engine_folder, checkpoint, captured=(1, 3), wrong=wrong)
        assert message in load_target(trt_server)
    write_engine(engine_folder, checkpoint, captured=(1, 3))
    assert load_target(trt_server) == ""
    assert list(ask(trt_server, REQUESTS[1]).token_ids) == plain_decoding(checkpoint, REQUESTS[1])
