"""Compatibility mode: a target behind NVIDIA's own `tensorrt_llm` model of the same server, as it is deployed already.

One request a sequence and pass, all at once, so that the model's batcher runs them together. There are no hidden states
and no log probabilities; at temperature 0 the output is the target's own, above it has the target's distribution, drawn
with the engine's random numbers instead of ours.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.engine import EngineError, nothing_held
from python_backend.engines.hardware import hardware_of
from python_backend.engines.slots import Slots
from python_backend.protocol import (
    NO_TOKEN,
    Array,
    Description,
    PrefixHit,
    PrefixQuery,
    TargetResult,
    TargetStep,
    Tensors,
)
from python_backend.settings import CoordinatorSettings, TargetSettings
from python_backend.triton_bridge.messages import pb_tensors
from python_backend.triton_bridge.stock_tensors import OUTPUTS, Tokens, Verify, new_tokens, verify_of


class StockTarget:
    """A `TargetEngine` over the Triton model `target.stock_model`."""

    def __init__(self, folder: Path, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
        """folder: the checkpoint that the model's engine was built from, with its config.json and tokenizer."""
        if target.feature_layers:
            raise ValueError("target.engine stock gives no hidden states: only prompt_lookup can draft for it")
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        self.folder, self.target = folder, target
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, vocabulary)
        self._callers = ThreadPoolExecutor(coordinator.max_sequences, thread_name_prefix="verify")

    def describe(self) -> Description:
        return Description(
            name=self.folder.name,
            role="target",
            engine="stock",
            engine_version=self.target.stock_model,
            dtype="as built",
            device="as built",
            hardware=hardware_of("cuda") if torch.cuda.is_available() else "",  # the model's own, where there is one
            weights_sha256=weights_sha256(self.folder) if any(self.folder.glob("*.safetensors")) else "",
            vocabulary_size=self.slots.vocabulary_size,
            slots=self.slots.count,
            max_length=self.slots.max_length,
            feature_layers=(),
            feature_size=0,
        )

    def open(self, opening: PrefixQuery) -> PrefixHit:
        return nothing_held(opening)

    def step(self, step: TargetStep) -> TargetResult:
        """Raises ProtocolError where the step breaks the contract, EngineError with the model's own message."""
        self.slots.begin(step)
        asked = np.flatnonzero(step.sample)  # a prompt chunk that is not the last is only noted
        calls = [verify_of(step, int(i), self.slots.history.tokens[step.slot[i]]) for i in asked]
        accepted = np.zeros(len(step.slot), dtype=np.int32)
        next_token = np.full(len(step.slot), NO_TOKEN, dtype=np.int32)
        for i, emitted in zip(asked, self._callers.map(self._verify, calls), strict=True):
            accepted[i], next_token[i] = len(emitted) - 1, emitted[-1]
        self.slots.commit(step, accepted)
        nothing = np.zeros(len(step.slot), dtype=np.int32)
        return TargetResult(
            accepted=accepted,
            next_token=next_token,
            feature_count=nothing,
            features=np.zeros((0, 0), dtype=np.float32),
            log_prob_count=nothing,
            log_probs=np.zeros(0, dtype=np.float32),
        )

    def release(self, slot: Array) -> None:
        self.slots.release(slot)

    def _verify(self, verify: Verify) -> Tokens:
        return new_tokens(verify, self._call(verify.tensors))

    def _call(self, tensors: Tensors) -> Tensors:
        """The one answer of the model, whatever its transaction policy: a call as for a decoupled model takes both, and
        such a model may end with an empty response after it."""
        model = self.target.stock_model
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=list(OUTPUTS), inputs=pb_tensors(tensors)
        )
        answers: list[Tensors] = []
        try:
            for response in request.exec(decoupled=True):
                if response.has_error():
                    raise EngineError(f"{model}: {response.error().message()}")
                # copied: the memory belongs to the response
                given = {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}
                answers += [given] if given else []
        except pb_utils.TritonModelException as error:
            raise EngineError(f"{model}: {error}") from error
        if len(answers) != 1:
            raise EngineError(f"{model} gave {len(answers)} answers to a request without streaming, expected 1")
        return answers[0]
