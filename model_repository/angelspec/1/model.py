"""The coordinator: drafts, prunes and verifies for all requests in flight."""

import json
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from python_backend.assembly.local import local_drafters
from python_backend.checkpoints import tokenizer
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.service import Service
from python_backend.coordinator.text import TextCodec
from python_backend.settings import load
from python_backend.triton_bridge.bls import TARGET, BlsTarget, bls_drafters
from python_backend.triton_bridge.models import CoordinatorModel
from python_backend.triton_bridge.observe import log_to_triton


class TritonPythonModel:
    def initialize(self, args):
        log_to_triton()
        settings, closing = load(), threading.Event()
        folder = resolve_checkpoint(settings)
        words = tokenizer.load_tokenizer(folder)
        codec = TextCodec(words, tokenizer.end_ids(folder), tokenizer.vocabulary_size(folder))
        drafters = bls_drafters(settings, closing) | local_drafters(settings)
        service = Service(settings, BlsTarget(TARGET, closing), drafters, codec, Metrics())
        self.model = CoordinatorModel(service, closing, json.loads(args["model_config"]))

    def execute(self, requests):
        return self.model.execute(requests)

    def is_ready(self):
        return self.model.is_ready()

    def finalize(self):
        self.model.finalize()
