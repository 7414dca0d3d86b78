"""The coordinator for clients that know only one response a request."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from python_backend.triton_bridge.models import TwinModel
from python_backend.triton_bridge.observe import log_to_triton


class TritonPythonModel:
    def initialize(self, args):
        log_to_triton()
        self.model = TwinModel()

    def execute(self, requests):
        return self.model.execute(requests)

    def finalize(self):
        self.model.finalize()
