"""Drafter networks behind Triton: chosen by workload, fed with the target's states, without a trace in the output."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from build_scripts.server import ServerStartError
from clients import transport, wire
from python_backend.drafters.config import CONFIG
from python_backend.settings import ROOT
from tests.server.conftest import ServerUnderTest

pytestmark = pytest.mark.server

PROMPTS = {
    "chat": "Recommend a quiet place for a weekend trip.",
    "code": "Write a Python function that reverses a string.",
    "math": "Tom has 3 apples and buys 4 more. How many apples does he have?",
}
MODELS = {"chat": "drafter_mtp", "code": "drafter_dfly", "math": "drafter_dfly"}
TOKENS = 40


@pytest.fixture(scope="module")
def settings_file(embedded, tmp_path_factory):
    settings = yaml.safe_load((ROOT / "angelspec-drafters.yaml").read_text())
    settings["coordinator"] |= {"max_sequences": 4, "allow_control": True}
    settings["budget"] |= {"policy": "fixed"}
    file = tmp_path_factory.mktemp("drafters") / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture(scope="module")
def drafted(settings_file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANGELSPEC_SETTINGS", str(settings_file))
        with ServerUnderTest() as running:
            yield running


def answer(server, prompt, temperature=0.0, **more):
    request = {
        "messages": wire.chat_messages(("user", PROMPTS[prompt])),
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "temperature": temperature,
        "seed": 7,
        "workload": prompt,
    }
    return transport.generate(request | more, server.http_url)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mixed_batch_gives_the_tokens_of_plain_decoding(drafted, temperature):
    plain = {w: answer(drafted, w, temperature, num_draft_tokens=0).token_ids for w in PROMPTS}
    with ThreadPoolExecutor() as pool:
        together = dict(zip(PROMPTS, pool.map(lambda w: answer(drafted, w, temperature), PROMPTS), strict=True))
    for workload, spoken in together.items():
        assert spoken.token_ids == plain[workload]
        assert spoken.summary.speculation.drafter == MODELS[workload]
        assert spoken.summary.speculation.num_accepted_tokens > 0


def test_a_request_that_does_not_say_what_it_is_gets_the_drafter_of_its_kind(drafted):
    for workload, model in MODELS.items():
        assert answer(drafted, workload, workload="auto").summary.speculation.drafter == model


def test_a_drafter_of_another_target_stops_the_start(settings_file, tmp_path, monkeypatch):
    settings = yaml.safe_load(settings_file.read_text())
    other = tmp_path / "mtp"
    shutil.copytree(ROOT / "model_repository" / "drafter_mtp" / "1", other)
    config = (other / CONFIG).read_text()
    (other / CONFIG).write_text(config.replace(yaml.safe_load(config)["target_sha256"], "0" * 64))
    settings["drafters"]["drafter_mtp"]["folder"] = str(other)
    changed = tmp_path / "settings.yaml"
    changed.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("ANGELSPEC_SETTINGS", str(changed))
    with pytest.raises(ServerStartError, match="was trained for a target with weights 000000000000"):
        ServerUnderTest().start()
