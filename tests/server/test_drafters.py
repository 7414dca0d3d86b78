"""Drafter networks behind Triton: chosen by workload, fed with the target's states, without a trace in the output."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml

from build_scripts.server import ServerStartError
from clients import transport, wire
from python_backend.drafters.config import CONFIG
from python_backend.drafters.weights import save, target_parts
from python_backend.engines.checkpoint import weights_sha256
from python_backend.engines.decoder import load_weights, read_config
from python_backend.settings import ROOT
from tests.server.conftest import ServerUnderTest
from training.recipe import read_recipe
from training.trainer import drafter_config, fresh_network

pytestmark = pytest.mark.server

PROMPTS = {
    "chat": "Why is the sky blue? Explain it to a child.",
    "code": "Write a Python function that reverses a string.",
    "math": "Tom has 3 apples and buys 4 more. How many apples does he have?",
}
MODELS = {"chat": "drafter_mtp", "code": "drafter_dfly", "math": "drafter_dfly"}
TOKENS = 40


def untrained(kind: str, checkpoint: Path, folder: Path) -> Path:
    """A drafter as its recipe starts it."""
    recipe, shape = read_recipe(ROOT / "training" / "recipes" / f"{kind}.yaml"), read_config(checkpoint)
    network = fresh_network(
        recipe,
        drafter_config(recipe, shape, weights_sha256(checkpoint)),
        target_parts(checkpoint),
        load_weights(checkpoint),
        torch.arange(recipe.draft_vocabulary_size),
        torch.ones(len(recipe.feature_layers)),
    )
    save(network, folder)
    return folder


@pytest.fixture(scope="module")
def settings_file(embedded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafters")
    drafters = {
        f"drafter_{kind}": {"kind": "network", "weights": str(untrained(kind, embedded, folder / kind))}
        for kind in ("mtp", "dfly")
    }
    settings = yaml.safe_load((ROOT / "angelspec.yaml").read_text()) | {"drafters": drafters, "routes": MODELS}
    settings["coordinator"] |= {"max_sequences": 4, "allow_control": True}
    settings["budget"] |= {"policy": "fixed"}
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture(scope="module")
def drafted(settings_file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANGELSPEC_SETTINGS", str(settings_file))
        with ServerUnderTest() as running:
            yield running


def answer(server, workload, temperature=0.0, **more):
    request = {
        "messages": wire.chat_messages(("user", PROMPTS[workload])),
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "temperature": temperature,
        "seed": 7,
        "workload": workload,
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
        assert spoken.summary.speculation.num_kept_tokens > 0


def test_a_drafter_of_another_target_stops_the_start(settings_file, tmp_path, monkeypatch):
    settings = yaml.safe_load(settings_file.read_text())
    original = Path(settings["drafters"]["drafter_mtp"]["weights"])
    other = tmp_path / "mtp"
    other.mkdir()
    for file in original.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = (other / CONFIG).read_text()
    (other / CONFIG).write_text(config.replace(yaml.safe_load(config)["target_sha256"], "0" * 64))
    settings["drafters"]["drafter_mtp"]["weights"] = str(other)
    changed = tmp_path / "settings.yaml"
    changed.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("ANGELSPEC_SETTINGS", str(changed))
    with pytest.raises(ServerStartError, match="was trained for a target with weights 000000000000"):
        ServerUnderTest().start()
