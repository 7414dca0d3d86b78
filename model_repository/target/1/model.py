"""The target model's engine."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from python_backend.assembly.engines import build_host
from python_backend.settings import load
from python_backend.triton_bridge.models import EngineModel
from python_backend.triton_bridge.observe import log_to_triton


class TritonPythonModel:
    def initialize(self, args):
        log_to_triton()
        self.model = EngineModel.of_target(*build_host(load()))

    def execute(self, requests):
        return self.model.execute(requests)
