"""The PyTorch target engine: the readable reference that every other engine is compared with."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.engine import nothing_held
from python_backend.engines.device_results import result_of, settle, with_features
from python_backend.engines.hardware import hardware_of
from python_backend.engines.slots import Slots, check_fits, committed_rows, feature_counts
from python_backend.engines.torch_attention import KvCache, on_device, plan
from python_backend.engines.torch_network import Decoder, Pass
from python_backend.protocol import Array, Description, PrefixHit, PrefixQuery, TargetResult, TargetStep
from python_backend.sampling import verify_torch as device
from python_backend.sampling.verify import Acceptance, accept, logit_rows
from python_backend.settings import CoordinatorSettings, TargetSettings


class TorchEngine:
    """A `TargetEngine` over a local checkpoint folder, on a CPU or a CUDA device."""

    def __init__(self, folder: Path, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
        torch.set_num_threads(target.threads or len(os.sched_getaffinity(0)))
        config = read_config(folder)
        check_fits(config.max_position, config.layers, target, coordinator)
        self.target = target
        self.folder = folder
        self.sha256 = weights_sha256(folder)
        self.dtype: torch.dtype = getattr(torch, target.dtype)
        self.few_runs = torch.device(target.device).type != "cpu"
        self.network = Decoder(config, load_weights(folder), self.dtype, target.device)
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, config.vocabulary_size)
        self.cache = KvCache(
            config.layers,
            self.slots.count,
            config.kv_heads,
            self.slots.max_length,
            config.head_dim,
            self.dtype,
            target.device,
        )

    def describe(self) -> Description:
        config = self.network.config
        return Description(
            name=self.folder.name,
            role="target",
            engine="torch",
            engine_version=torch.__version__,
            dtype=self.target.dtype,
            device=self.target.device,
            hardware=hardware_of(self.target.device),
            weights_sha256=self.sha256,
            vocabulary_size=config.vocabulary_size,
            slots=self.slots.count,
            max_length=self.slots.max_length,
            feature_layers=self.target.feature_layers,
            feature_size=len(self.target.feature_layers) * config.hidden_size,
        )

    def open(self, opening: PrefixQuery) -> PrefixHit:
        return nothing_held(opening)

    def open_on_device(self, opening: PrefixQuery) -> tuple[PrefixHit, Tensor | None]:
        return nothing_held(opening), None

    def step(self, step: TargetStep) -> TargetResult:
        """Run, sample, accept, commit. Raises ProtocolError where the step breaks the contract."""
        return with_features(*self.step_on_device(step))

    @torch.inference_mode()
    def step_on_device(self, step: TargetStep) -> tuple[TargetResult, Tensor | None]:
        """A step whose features [C, F] stay on the device, apart from the result."""
        self.slots.begin(step)
        decided = on_device(logit_rows(step), self.target.device)
        result = self.forward(step)
        acceptance = self._accept(step, self.network.head(result.hidden[decided]).float())
        counts = feature_counts(step, self.slots.commit(step, acceptance.accepted))
        features = None
        if result.captured:
            rows = on_device(committed_rows(step, counts), self.target.device)
            features = torch.cat([captured[rows] for captured in result.captured], dim=1)
        settle(step, torch.device(self.target.device))
        return result_of(acceptance, counts, features is not None), features

    @torch.inference_mode()
    def forward(self, step: TargetStep) -> Pass:
        """Hidden states of all packed rows, [R, hidden]; stores their keys and values, samples nothing."""
        group = self.network.config.heads // self.network.config.kv_heads
        layout = plan(step, group, self.dtype, self.target.device, self.few_runs)
        result = self.network.forward(layout, self.cache, self.target.feature_layers)
        return Pass(result.hidden[layout.order], [captured[layout.order] for captured in result.captured])

    def release(self, slot: Array) -> None:
        self.slots.release(slot)

    def _accept(self, step: TargetStep, logits: Tensor) -> Acceptance:
        """Where the logits are: a GPU keeps them, and on a CPU numpy is faster than torch."""
        if logits.device.type == "cpu":
            return accept(step, logits.numpy(), self.slots.history)
        return device.accept(step, logits, self.slots.history)
