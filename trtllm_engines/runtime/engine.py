"""The TensorRT-LLM target engine: sampling, acceptance and features stay on the device until they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.engine import EngineError
from python_backend.engines.blocks import BlockTables
from python_backend.engines.device_results import on_host, result_of, settle, with_features
from python_backend.engines.hardware import built, hardware_of
from python_backend.engines.slots import Slots, committed_rows, feature_counts
from python_backend.protocol import (
    Array,
    Description,
    Part,
    PrefixHit,
    PrefixQuery,
    ProtocolError,
    TargetResult,
    TargetStep,
)
from python_backend.sampling.verify import logit_rows
from python_backend.sampling.verify_torch import accept
from python_backend.settings import CoordinatorSettings, TargetSettings
from trtllm_engines.pin import TENSORRT_LLM, captured_name
from trtllm_engines.runtime.config import CONFIG, EngineConfig
from trtllm_engines.runtime.kept_features import KeptFeatures
from trtllm_engines.runtime.passes import Layout, Passes
from trtllm_engines.runtime.ranks import announce, join_world


class TensorRtTarget:
    """A `TargetEngine` over the engine in `target.engine_folder`.

    Raises EngineError, before anything is allocated, where the engine, the settings and the device do not fit together.
    """

    def __init__(self, folder: Path, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
        """folder: the checkpoint that the engine was built from; it has the tokenizer and the weights' checksum."""
        assert target.engine_folder is not None  # the settings see to it
        self.folder, self.target = folder, target
        self.device = torch.device(target.device)
        made = EngineConfig.read(target.engine_folder)
        check_fits(made, target, coordinator, self.device)
        self.config = used(made, coordinator)
        self.world = join_world(made.tensor_parallel)
        self.passes = Passes(target.engine_folder, self.config, target.feature_layers, self.device)
        self.sha256 = weights_sha256(folder)
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, self.config.vocabulary)
        self.kept: KeptFeatures | None = None
        self.blocks = self._block_tables(keep=0)
        self.warm_up()
        self.blocks = self._block_tables(keep=target.prefix_cache // self.config.tokens_per_block)
        if self.blocks.pool.keep and target.feature_layers:
            self.kept = self._allocate_kept()

    def describe(self) -> Description:
        assert self.target.engine_folder is not None
        return Description(
            name=self.folder.name,
            role="target",
            engine="tensorrt_llm",
            engine_version=TENSORRT_LLM,
            dtype=self.config.dtype,
            device=self.target.device,
            build=built(self.target.engine_folder, CONFIG, "rank0.engine"),
            hardware=hardware_of(self.target.device),
            weights_sha256=self.sha256,
            vocabulary_size=self.config.vocabulary,
            slots=self.slots.count,
            max_length=self.slots.max_length,
            feature_layers=self.target.feature_layers,
            feature_size=self.feature_size,
            prefix_block=self.blocks.block_size if self.blocks.pool.keep else 0,
        )

    @property
    def feature_size(self) -> int:
        return len(self.target.feature_layers) * self.config.hidden

    def open(self, opening: PrefixQuery) -> PrefixHit:
        """Let prompts begin with rows that others left. Raises ProtocolError where they break the contract."""
        opened, features = self.open_on_device(opening)
        return opened if features is None else replace(opened, features=on_host(features))

    @torch.inference_mode()
    def open_on_device(self, opening: PrefixQuery) -> tuple[PrefixHit, Tensor | None]:
        """The same with the features [C, F] on the device, apart from the answer."""
        prompts = self.slots.open(opening)
        unread = np.isin(opening.slot, opening.unread)
        for slot, tokens, silent in zip(opening.slot, prompts, unread, strict=True):
            self.slots.stored[slot] = self.blocks.open(int(slot), tokens)
            if self.kept and not silent:
                self._shorten(int(slot), self.kept)
        held = self.slots.stored[opening.slot]
        count = np.where(unread | (self.kept is None), 0, held)
        nothing = np.zeros((0, 0), dtype=np.float32)
        features = None
        if self.kept and count.any():
            with self.passes.on_stream():
                features = self.kept.read(self.blocks.indices(opening.slot[~unread]).indices)
        return PrefixHit(held=held, feature_count=count.astype(np.int32), features=nothing), features

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
        with self.passes.on_stream():
            logits = self.passes.run(step, wanted, self.lay_out(step, wanted))
            acceptance = accept(step, logits, self.slots.history)
            committed = self.slots.commit(step, acceptance.accepted)
            counts = feature_counts(step, committed)
            features = self._features(committed_rows(step, counts))
            if self.kept and features is not None:
                self._keep(step, committed, counts, features, self.kept)
            settle(step, self.device)
        self.blocks.seal(step.slot, self.slots.stored[step.slot], self.slots.history.tokens)
        return result_of(acceptance, counts, features is not None), features

    def lay_out(self, step: TargetStep, wanted: Array) -> Layout:
        """Blocks for the rows of a step; the other ranks hear of the pass."""
        copies = self.blocks.prepare(step.slot, step.past_length, step.past_length + step.row_count)
        layout = Layout(copies, self.blocks.table[step.slot])
        if self.world:
            announce(self.world, step, wanted, layout)
        if self.kept:
            for copy in copies:
                self.kept.copy(copy)
        return layout

    def release(self, slot: Array) -> None:
        self.slots.release(slot)
        self.blocks.release(slot)

    def warm_up(self) -> None:
        """The first passes of a process load kernels and size workspaces: make them before anybody waits."""
        most = min(self.config.max_rows, self.slots.max_length)
        for rows in sorted({1, most}):
            self.step(TargetStep.of([Part(0, 0, [0] * rows)]))
        self.release(np.zeros(1, dtype=np.int32))

    def _features(self, rows: Array) -> Tensor | None:
        """[C, F] of the committed rows, which outlive the next pass."""
        if not self.target.feature_layers:
            return None
        index = torch.from_numpy(rows).to(self.device)
        return torch.cat([self.passes.outputs[captured_name(i)][index] for i in self.target.feature_layers], dim=1)

    def _keep(self, step: TargetStep, committed: Array, counts: Array, features: Tensor, kept: KeptFeatures) -> None:
        """Features of the rows that were committed, for sequences that begin with them. counts: those that are read."""
        silent = counts < committed
        kept.forget(*self.blocks.places(step.slot[silent], step.past_length[silent], committed[silent]))
        kept.write(*self.blocks.places(step.slot, step.past_length, counts), features)

    def _shorten(self, slot: int, kept: KeptFeatures) -> None:
        """Let a sequence that has just been opened hold only rows whose features are there."""
        rows = kept.whole(self.blocks.indices(np.array([slot])).indices) * self.blocks.block_size
        self.blocks.prepare(np.array([slot]), np.array([rows]), np.array([rows]))
        self.slots.stored[slot] = rows

    def _block_tables(self, keep: int) -> BlockTables:
        return BlockTables(self.slots.count, self.slots.max_length, self.config.tokens_per_block, keep)

    def _allocate_kept(self) -> KeptFeatures:
        """Room for the blocks that are kept, and for those that one step writes."""
        pool, size = self.blocks.pool, self.blocks.block_size
        room = min(pool.count, pool.keep + self.slots.count + self.config.max_rows // size)
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        with self.passes.on_stream():
            return KeptFeatures(pool.count, room, size, self.feature_size, dtype, self.device)


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
