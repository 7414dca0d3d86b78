"""The TensorRT-LLM target engine: sampling, acceptance and features stay on the device until they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backend.engines.base import EngineError, nothing_held
from python_backend.engines.blocks import BlockTables
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
from trtllm_engines.runtime.contract import LOGITS, padded_vocabulary
from trtllm_engines.runtime.inputs import PassInputs
from trtllm_engines.runtime.session import EngineSession

GIB = 2**30


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
        self.config = replace(
            built,
            max_sequences=coordinator.max_sequences,
            max_length=coordinator.max_length,
            max_drafts=coordinator.depth,
        )
        self.session = EngineSession(target.engine_folder)
        self.session.check(self.config, target.feature_layers)
        self.sha256 = weights_sha256(folder)
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, self.config.vocabulary)
        self.blocks = BlockTables(self.slots.count, self.slots.max_length, self.config.tokens_per_block)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with self._on_stream():
            self.pool = allocate_pool(self.config, self.slots.count, self.device)
            self.inputs = PassInputs(self.config, self.pool.data_ptr(), self.device)
            self.outputs = self._allocate_outputs()
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
        with self._on_stream():
            logits = self.forward(step, logit_rows(step))
            acceptance = accept(step, logits, self.slots.history)
            counts = feature_counts(step, self.slots.commit(step, acceptance.accepted))
            features = self._features(committed_rows(step, counts))
        return result_of(acceptance, counts, features is not None), features

    def release(self, slot: Array) -> None:
        self.slots.release(slot)
        self.blocks.release(slot)

    def forward(self, step: TargetStep, wanted: Array) -> Tensor:
        """Run all rows of a step. wanted: [N] rows that need logits. Returns [N, vocabulary] float32 on the device.

        The captured states of the pass are in `outputs` then; logits and states are valid until the next pass.
        """
        self.blocks.prepare(step.slot, step.past_length, step.past_length + step.row_count)
        asked = wanted if len(wanted) else np.array([len(step.token_ids) - 1])  # the engine has to be asked for one
        inputs = self.inputs.fill(step, self.blocks, asked)
        rows = {name: len(asked) if name == LOGITS else len(step.token_ids) for name in self.outputs}
        outputs = {name: self.outputs[name][:count] for name, count in rows.items()}
        self.session.run(inputs, outputs, self.stream.cuda_stream if self.stream else 0)
        return outputs[LOGITS][: len(wanted), : self.config.vocabulary].float()

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
        return torch.cat([self.outputs[captured_name(i)][index] for i in self.target.feature_layers], dim=1)

    def _allocate_outputs(self) -> dict[str, Tensor]:
        """Memory for every output, also for those that nobody asked for: the engine writes them all."""
        widths = {LOGITS: (self.config.max_logit_rows, padded_vocabulary(self.config))}
        states = (self.config.max_rows, self.config.hidden)
        return {
            tensor.name: torch.empty(
                widths.get(tensor.name, states), dtype=getattr(torch, tensor.dtype), device=self.device
            )
            for tensor in self.session.declared()
            if not tensor.is_input
        }

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Everything that this engine queues goes to its one stream, in order with what its caller queues on its own.

        A CPU has no streams.
        """
        if self.stream is None:
            yield
            return
        callers = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(callers)  # memory that the caller gave back may be in use there
        with torch.cuda.stream(self.stream):
            yield
        callers.wait_stream(self.stream)


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
    if built.tensor_parallel > 1:
        problems.append(f"the engine is cut into {built.tensor_parallel} ranks, and one process serves one")
    if beyond := [i for i in target.feature_layers if not 0 <= i <= built.layers]:
        problems.append(f"target.feature_layers names layer {beyond[0]}, limit 0 to {built.layers}")
    if torch.cuda.is_available() and device.type == "cpu":
        problems.append("target.device is cpu: TensorRT-LLM engines run on a GPU, set target.device cuda")
    if problems:
        raise EngineError("; ".join(problems))


def allocate_pool(config: EngineConfig, slots: int, device: torch.device) -> Tensor:
    """Zeroed KV blocks [blocks, layers, 2, kv_heads * tokens_per_block * head_dim], enough for every slot.

    So that no pass can find the pool empty. Raises EngineError where they do not fit into the device's free memory.
    """
    blocks = slots * config.blocks_per_sequence
    shape = (blocks, config.layers, 2, config.kv_heads * config.tokens_per_block * config.head_dim)
    dtype: torch.dtype = getattr(torch, config.kv_dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if device.type == "cuda" and size > (free := torch.cuda.mem_get_info(device)[0]):
        raise EngineError(
            f"keys and values of {slots} slots of {config.max_length} tokens take {size / GIB:.1f} GiB, "
            f"{free / GIB:.1f} GiB are free: lower coordinator.max_sequences or coordinator.max_length"
        )
    return torch.zeros(shape, dtype=dtype, device=device)
