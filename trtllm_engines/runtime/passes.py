"""Passes of one rank's engine: its session, the memory of its KV blocks and its tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from python_backend.engine import EngineError
from python_backend.engines.blocks import Copy
from python_backend.protocol import Array, TargetStep
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.contract import LOGITS, padded_vocabulary
from trtllm_engines.runtime.inputs import PassInputs
from trtllm_engines.runtime.session import EngineSession
from trtllm_engines.runtime.streams import OwnStream

GIB = 2**30


class Layout(NamedTuple):
    """Where the rows of a pass lie: decided by rank 0, the same on all of them."""

    copies: list[Copy]  # of blocks, before the pass and in this order
    table: Array  # [B, P] blocks of each sequence


class Passes:
    """Runs rows of steps through an engine on one stream. config: with the limits that are used."""

    def __init__(
        self, folder: Path, config: EngineConfig, captured: Sequence[int], device: torch.device, rank: int = 0
    ) -> None:
        """Raises EngineError, before anything is allocated, where the engine is not what the contract says."""
        self.config, self.device = config, device
        self.session = EngineSession(folder, rank)
        self.session.check(config, captured)
        self.on_stream = OwnStream(device)
        with self.on_stream():
            self.pool = allocate_pool(config, device)
            self.workspace = self.session.all_reduce_workspace(config.tensor_parallel, rank)
            self.inputs = PassInputs(config, self.pool.data_ptr(), device, self.workspace.tensors)
            self.outputs = self._allocate_outputs()

    @torch.inference_mode()
    def run(self, step: TargetStep, wanted: Array, layout: Layout) -> Tensor:
        """Run all rows of a step. wanted: [N] rows that need logits. Returns [N, vocabulary] float32 on the device.

        The captured states of the pass are in `outputs` then; logits and states are valid until the next pass.
        """
        for copy in layout.copies:
            self.pool[copy.target] = self.pool[copy.source]
        asked = wanted if len(wanted) else np.array([len(step.token_ids) - 1])  # the engine has to be asked for one
        inputs = self.inputs.fill(step, layout.table, asked)
        rows = {name: len(asked) if name == LOGITS else len(step.token_ids) for name in self.outputs}
        outputs = {name: self.outputs[name][:count] for name, count in rows.items()}
        self.session.run(inputs, outputs, self.on_stream.handle)
        return outputs[LOGITS][: len(wanted), : self.config.vocabulary].float()

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


def allocate_pool(config: EngineConfig, device: torch.device) -> Tensor:
    """Zeroed KV blocks [blocks, layers, 2, kv_heads * tokens_per_block * head_dim], enough for every slot.

    So that no pass can find the pool empty. Raises EngineError where they do not fit into the device's free memory.
    """
    slots = config.max_sequences
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
