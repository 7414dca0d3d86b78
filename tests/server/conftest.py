"""Real Triton servers for the tests of this folder, each started once a session."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from build_scripts.server import REPOSITORY, TritonServer

MAGIC_TOKEN = 12345

BROKEN_TARGET = f'''
"""The target, but a pass over token {MAGIC_TOKEN} raises."""

from python_backend.assembly.engines import build_target
from python_backend.settings import load
from python_backend.triton_bridge.models import EngineModel


class Engine:
    def __init__(self):
        self._engine = build_target(load())
        self.describe, self.open, self.release = self._engine.describe, self._engine.open, self._engine.release

    def step(self, step):
        if (step.token_ids == {MAGIC_TOKEN}).any():
            raise RuntimeError("engine exploded on purpose")
        return self._engine.step(step)


class TritonPythonModel:
    def initialize(self, args):
        self.model = EngineModel.of_target(Engine())

    def execute(self, requests):
        return self.model.execute(requests)
'''


FAULTY_DOOR = '''
"""A shipped model, but a request with the parameter `fault` raises at that call of our code before it is queued."""

import importlib.util
import json

spec = importlib.util.spec_from_file_location("shipped", "SHIPPED")
shipped = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shipped)

from tests.support.faults import Fault


class TritonPythonModel(shipped.TritonPythonModel):
    def execute(self, requests):
        for request in requests:
            n = json.loads(request.parameters() or "{}").get("fault", 0)
            with Fault(n, beyond=("CoordinatorModel.execute", "AliasModel.execute", "enter")).here():
                super().execute([request])
'''


class ServerUnderTest(TritonServer):
    """A server with the questions that tests ask it."""

    magic_token = MAGIC_TOKEN

    @property
    def slots(self) -> int:
        return self.settings.coordinator.max_sequences

    def set_policy(self, policy: str) -> None:
        """Change the budget policy of all requests from the next step on."""
        body = {"text_input": "", "parameters": {"operation": "set_policy", "policy": policy}}
        response = httpx.post(f"http://{self.http_url}/v2/models/angelspec/generate", json=body, timeout=30)
        assert response.status_code == 200, response.text

    def metric(self, name: str) -> float:
        """A value of Triton's metrics endpoint."""
        text = httpx.get(f"http://{self.metrics_url}/metrics", timeout=10).text
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def slots_in_use(self) -> int:
        return self.slots - int(self.metric("angelspec_free_slots"))


@pytest.fixture(scope="session")
def server() -> Iterator[ServerUnderTest]:
    """The server as it ships, control requests allowed."""
    with ServerUnderTest(environment={"ANGELSPEC_COORDINATOR__ALLOW_CONTROL": "true"}) as running:
        yield running


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """Two slots, a queue of three, short prompts, drafts by a call, a target that raises on the magic token, and
    doors that raise where a request asks for it."""
    repository = tmp_path_factory.mktemp("repository")
    broken = {"target": BROKEN_TARGET}
    for name in ("angelspec", "angelspec_infer"):
        broken[name] = FAULTY_DOOR.replace("SHIPPED", str(REPOSITORY / name / "1" / "model.py"))
    for folder in REPOSITORY.iterdir():
        if folder.name not in broken:
            (repository / folder.name).symlink_to(folder)
    for name, code in broken.items():
        shutil.copytree(REPOSITORY / name, repository / name)
        Path(repository / name / "1" / "model.py").write_text(code)
    environment = {
        "ANGELSPEC_COORDINATOR__MAX_SEQUENCES": "2",
        "ANGELSPEC_COORDINATOR__MAX_QUEUE": "3",
        "ANGELSPEC_COORDINATOR__MAX_LENGTH": "256",
        "ANGELSPEC_BUDGET__POLICY": "fixed",
        "ANGELSPEC_DRAFTERS__DRAFTER_PROMPT_LOOKUP__PROCESS": "own",
    }
    with ServerUnderTest(repository=repository, environment=environment) as running:
        yield running
