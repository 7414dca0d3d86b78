"""The coordinator by the name that clients of TensorRT-LLM's BLS model address."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from python_backend.triton_bridge.models import AliasModel
from python_backend.triton_bridge.observe import log_to_triton


class TritonPythonModel:
    def initialize(self, args):
        log_to_triton()
        self.model = AliasModel()

    def execute(self, requests):
        return self.model.execute(requests)

    def finalize(self):
        self.model.finalize()
