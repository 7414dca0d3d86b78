"""The TensorRT-LLM target engine: sampling, acceptance and features stay on the device until they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backend.engines.base import EngineError, nothing_held
from python_backend.engines.checkpoint import weights_sha256
from python_backend.engines.device_results import result_of, with_features
from python_backend.engines.slots import Slots, committed_rows, feature_counts
from python_backend.protocol import Array, Description, Open, Opened, ProtocolError, TargetResult, TargetStep
from python_backend.sampling.device import accept
from python_backend.sampling.params import greedy_columns
from python_backend.sampling.verify import logit_rows
from python_backend.settings import CoordinatorSettings, TargetSettings
from trtllm_engines.pin import TENSORRT_LLM, captured_name
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.passes import Passes
from trtllm_engines.runtime.ranks import announce, announce_release, join_world


class TensorRtTarget:
    """A `TargetEngine` over the engine in `target.engine_folder`.

    Raises EngineError, before anything is allocated, where the engine, the settings and the device do not fit together.
    """

    def __init__(self, folder: Path, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
        """folder: the checkpoint that the engine was built from; it has the tokenizer and the weights' checksum."""
        assert target.engine_folder is not None  # the settings see to it
        self.folder, self.target = folder, target
        self.device = torch.device(target.device)
        built = EngineConfig.read(target.engine_folder)
        check_fits(built, target, coordinator, self.device)
        self.config = used(built, coordinator)
        self.world = join_world(built.tensor_parallel)
        self.passes = Passes(target.engine_folder, self.config, target.feature_layers, self.device)
        self.sha256 = weights_sha256(folder)
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, self.config.vocabulary)
        self.warm_up()

    def describe(self) -> Description:
        return Description(
            name=self.folder.name,
            role="target",
            engine="tensorrt_llm",
            engine_version=TENSORRT_LLM,
            dtype=self.config.dtype,
            device=self.target.device,
            weights_sha256=self.sha256,
            vocabulary_size=self.config.vocabulary,
            slots=self.slots.count,
            max_length=self.slots.max_length,
            feature_layers=self.target.feature_layers,
            feature_size=len(self.target.feature_layers) * self.config.hidden,
        )

    def open(self, opening: Open) -> Opened:
        return nothing_held(opening)

    def step(self, step: TargetStep) -> TargetResult:
        """Run, sample, accept, commit. Raises ProtocolError where the step breaks the contract."""
        return with_features(*self.step_on_device(step))

    @torch.inference_mode()
    def step_on_device(self, step: TargetStep) -> tuple[TargetResult, Tensor | None]:
        """A step whose features [C, F] stay on the device, apart from the result."""
        if len(step.token_ids) > self.config.max_rows:
            raise ProtocolError(
                f"tensor 'token_ids' has {len(step.token_ids)} rows, limit {self.config.max_rows}: max_num_tokens of "
                "the engine"
            )
        self.slots.begin(step)
        wanted = logit_rows(step)
        if self.world:
            announce(self.world, step, wanted)
        with self.passes.on_stream():
            logits = self.passes.run(step, wanted)
            acceptance = accept(step, logits, self.slots.history)
            counts = feature_counts(step, self.slots.commit(step, acceptance.accepted))
            features = self._features(committed_rows(step, counts))
        return result_of(acceptance, counts, features is not None), features

    def release(self, slot: Array) -> None:
        self.slots.release(slot)
        if self.world:
            announce_release(self.world, slot)
        self.passes.release(slot)

    def warm_up(self) -> None:
        """The first passes of a process load kernels and size workspaces: make them before anybody waits."""
        most = min(self.config.max_rows, self.slots.max_length)
        for rows in sorted({1, most}):
            self.step(
                TargetStep(
                    **greedy_columns(1),
                    slot=np.zeros(1, dtype=np.int32),
                    past_length=np.zeros(1, dtype=np.int32),
                    row_count=np.array([rows], dtype=np.int32),
                    sample=np.ones(1, dtype=np.bool_),
                    draft_count=np.zeros(1, dtype=np.int32),
                    token_ids=np.zeros(rows, dtype=np.int32),
                )
            )
        self.release(np.zeros(1, dtype=np.int32))

    def _features(self, rows: Array) -> Tensor | None:
        """[C, F] of the committed rows, which outlive the next pass."""
        if not self.target.feature_layers:
            return None
        index = torch.from_numpy(rows).to(self.device)
        return torch.cat([self.passes.outputs[captured_name(i)][index] for i in self.target.feature_layers], dim=1)


def used(built: EngineConfig, coordinator: CoordinatorSettings) -> EngineConfig:
    """The engine with the limits that are made use of."""
    return replace(
        built,
        max_sequences=coordinator.max_sequences,
        max_length=coordinator.max_length,
        max_drafts=coordinator.depth,
    )


def check_fits(
    built: EngineConfig, target: TargetSettings, coordinator: CoordinatorSettings, device: torch.device
) -> None:
    """Raise EngineError with everything that the settings want and the engine has not."""
    rows = coordinator.max_sequences * (coordinator.depth + 1) + coordinator.prefill_rows
    wanted = {
        "coordinator.max_sequences": (coordinator.max_sequences, built.max_sequences, "max_batch_size"),
        "coordinator.max_length": (coordinator.max_length, built.max_length, "max_seq_len"),
        "coordinator.depth": (coordinator.depth, built.max_drafts, "max_draft_len"),
        "max_sequences * (depth + 1) + prefill_rows": (rows, built.max_rows, "max_num_tokens"),
    }
    problems = [
        f"{name} is {value}, limit {limit}: {built_as} of the engine"
        for name, (value, limit, built_as) in wanted.items()
        if value > limit
    ]
    if beyond := [i for i in target.feature_layers if not 0 <= i <= built.layers]:
        problems.append(f"target.feature_layers names layer {beyond[0]}, limit 0 to {built.layers}")
    if torch.cuda.is_available() and device.type == "cpu":
        problems.append("target.device is cpu: TensorRT-LLM engines run on a GPU, set target.device cuda")
    if problems:
        raise EngineError("; ".join(problems))
