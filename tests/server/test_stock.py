"""Compatibility mode through a real Triton: NVIDIA's model verifies, here a stand-in with the same tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from build_scripts.server import REPOSITORY
from clients.wire import ServerError
from python_backend.settings import ROOT
from tests.server.conftest import ServerUnderTest
from tests.server.tiny import ask, plain_decoding, save_with_words

pytestmark = pytest.mark.server

LOOKUP = "drafter_prompt_lookup"
STAND_IN = ROOT / "tests" / "fakes" / "stock" / "tensorrt_llm"
GREEDY = [
    {"prompt": [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]},
    {"prompt": list(range(20, 120))},
    {"prompt": [9] * 30, "repetition_penalty": 1.3},
    {"prompt": [1, 2, 3, 1, 2, 3, 1, 2]},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_words("llama", tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module", params=["false", "true"], ids=["one answer", "decoupled"])
def stock_server(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, request: pytest.FixtureRequest
) -> Iterator[ServerUnderTest]:
    repository = tmp_path_factory.mktemp("repository")
    for folder in REPOSITORY.iterdir():
        (repository / folder.name).symlink_to(folder)
    shutil.copytree(STAND_IN, repository / STAND_IN.name)
    model = repository / STAND_IN.name / "1" / "model.py"
    model.write_text(model.read_text().replace("REPOSITORY_ROOT", str(ROOT)))
    config = repository / STAND_IN.name / "config.pbtxt"
    config.write_text(config.read_text().replace("decoupled: false", f"decoupled: {request.param}"))
    environment = {
        "ANGELSPEC_TARGET__ENGINE": "stock",
        "ANGELSPEC_TARGET__CHECKPOINT": str(checkpoint),
        "ANGELSPEC_DRAFTERS": json.dumps({LOOKUP: {}}),
        "ANGELSPEC_ROUTES": json.dumps(dict.fromkeys(("chat", "code", "math"), LOOKUP)),
        "ANGELSPEC_COORDINATOR__COMPATIBLE_MODELS": "[]",  # the repository has a model of NVIDIA's own
        "ANGELSPEC_COORDINATOR__MAX_SEQUENCES": "4",
        "ANGELSPEC_COORDINATOR__MAX_LENGTH": "256",
        "ANGELSPEC_COORDINATOR__PREFILL_ROWS": "64",
        "ANGELSPEC_BUDGET__POLICY": "fixed",
    }
    with ServerUnderTest(repository=repository, environment=environment) as running:
        yield running


def test_greedy_answers_of_requests_at_once_are_the_targets_own(
    stock_server: ServerUnderTest, checkpoint: Path
) -> None:
    with ThreadPoolExecutor(len(GREEDY)) as clients:
        answers = list(clients.map(lambda request: ask(stock_server, request), GREEDY))
    for request, answer in zip(GREEDY, answers, strict=True):
        assert list(answer.token_ids) == plain_decoding(checkpoint, request)
    assert sum(answer.summary.speculation.num_accepted_tokens for answer in answers) > 0


def test_sampled_answers_repeat_with_their_seed_and_differ_without(stock_server: ServerUnderTest) -> None:
    def draw(seed: int) -> list[int]:
        request = {"prompt": [7, 7, 7, 9], "temperature": 1.0, "seed": seed, "num_draft_tokens": 0}
        return list(ask(stock_server, request).token_ids)

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


@pytest.mark.parametrize(
    "asked", [{"min_p": 0.1}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.5}, {"return_log_probs": True}]
)
def test_what_the_stock_model_cannot_do_is_refused_by_name(
    stock_server: ServerUnderTest, asked: dict[str, Any]
) -> None:
    (name,) = asked
    with pytest.raises(ServerError, match=rf"{name} is .*target\.engine stock"):
        ask(stock_server, {"prompt": [7, 8, 9], "temperature": 1.0, **asked})


def test_the_stock_models_own_error_reaches_the_client(stock_server: ServerUnderTest) -> None:
    models = f"http://{stock_server.http_url}/v2/repository/models/tensorrt_llm"
    httpx.post(f"{models}/unload", timeout=60).raise_for_status()
    with pytest.raises(ServerError, match=r"target engine failed.*tensorrt_llm"):
        ask(stock_server, GREEDY[0])
    httpx.post(f"{models}/load", timeout=60).raise_for_status()
    assert ask(stock_server, GREEDY[0]).token_ids
