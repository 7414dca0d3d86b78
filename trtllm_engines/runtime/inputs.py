"""The input tensors of a pass: allocated once, written on the host, moved to the device by one copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.protocol import Array, TargetStep
from python_backend.rows import row_owners
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.contract import Rule, input_rules
from trtllm_engines.runtime.staging import Staging

ALIGNMENT = 64  # int32 of 256 bytes, which is what TensorRT asks of an address
CONTEXT_PHASE, NO_KNOB = 0, -1
PER_PASS = (
    "input_ids",
    "position_ids",
    "last_token_ids",
    "sequence_length",
    "context_lengths",
    "kv_cache_block_offsets",
)
TWINS = {  # host inputs that hold what a device input holds
    "host_past_key_value_lengths": "sequence_length",
    "host_context_lengths": "context_lengths",
    "host_kv_cache_block_offsets": "kv_cache_block_offsets",
}


class PassInputs:
    """Staging memory on the host, its copy on the device, and what never changes; the tensors of a pass are views."""

    def __init__(
        self, config: EngineConfig, pool_address: int, device: torch.device, more: dict[str, Tensor] | None = None
    ) -> None:
        """config: with the limits that are used. pool_address: where the KV blocks lie on the device. more: further
        inputs that never change."""
        self.rules = input_rules(config)
        self._layers = config.layers
        self._longest = {"L": config.max_length, "P": config.blocks_per_sequence}
        limits = {"B": config.max_sequences, "R": config.max_rows, "N": config.max_logit_rows, **self._longest}
        self._start: dict[str, int] = {}
        total = 0
        for rule in self.rules:
            if rule.name in PER_PASS:
                self._start[rule.name] = total
                total += -(-math.prod(_shape(rule, limits)) // ALIGNMENT) * ALIGNMENT
        self.staging = Staging(total, device)
        self._fixed, self._more = _fixed(config, pool_address, device), more or {}

    def fill(self, step: TargetStep, table: Array, wanted: Array) -> dict[str, Tensor]:
        """The inputs by name for all rows of a step, valid until the next one.

        table: [B, P] blocks of each sequence. wanted: [N] rising packed rows that need logits, at least one. The
        copy is queued on the current stream.
        """
        values = self._values(step, table, wanted)
        self.staging.send({self._start[name]: value for name, value in values.items()})
        counts = {"B": len(step.slot), "R": len(step.token_ids), "N": len(wanted), **self._longest}
        return {rule.name: self._view(rule, counts) for rule in self.rules} | self._more

    def _values(self, step: TargetStep, table: Array, wanted: Array) -> dict[str, npt.NDArray[Any]]:
        owner, offset = row_owners(step.row_count)
        return {
            "input_ids": step.token_ids,
            "position_ids": step.past_length[owner] + offset,
            "last_token_ids": wanted + 1,
            "sequence_length": step.past_length + step.row_count,
            "context_lengths": step.row_count,
            "kv_cache_block_offsets": block_offsets(table, self._layers),
        }

    def _view(self, rule: Rule, counts: dict[str, int]) -> Tensor:
        shape = _shape(rule, counts)
        name = TWINS.get(rule.name, rule.name)
        if name not in self._start:
            fixed = self._fixed[name]
            return fixed if fixed.shape == shape else fixed[: counts["B"]]
        memory = self.staging.host if rule.memory == "host" else self.staging.device
        start = self._start[name]
        return memory[start : start + math.prod(shape)].view(shape)


def block_offsets(table: Array, layers: int) -> npt.NDArray[np.int32]:
    """[1, B, 2, P] where keys and values of each block begin, in blocks of one layer.

    What lies beyond the blocks that a slot holds is never read.
    """
    first = table * np.int32(2 * layers)
    return np.stack((first, first + 1), axis=1)[None]


def _fixed(config: EngineConfig, pool_address: int, device: torch.device) -> dict[str, Tensor]:
    """Inputs whose values are the same in every pass; those with an axis B are cut to it."""
    batch = config.max_sequences
    layer = torch.arange(config.layers, dtype=torch.int32)
    return {
        "cache_indirection": torch.zeros(batch, 1, config.max_length, dtype=torch.int32, device=device),
        "host_request_types": torch.full((batch,), CONTEXT_PHASE, dtype=torch.int32),
        "host_max_attention_window_sizes": torch.full((config.layers,), config.max_length, dtype=torch.int32),
        "host_sink_token_length": torch.zeros(1, dtype=torch.int32),
        "host_kv_cache_pool_pointers": torch.tensor([[pool_address, 0]], dtype=torch.int64),
        "host_kv_cache_pool_mapping": torch.stack((torch.zeros_like(layer), layer), dim=1),
        "host_runtime_perf_knobs": torch.full((16,), NO_KNOB, dtype=torch.int64),
        "host_context_progress": torch.zeros(1, dtype=torch.int64),
    }


def _shape(rule: Rule, counts: dict[str, int]) -> tuple[int, ...]:
    return tuple(counts[d] if isinstance(d, str) else d for d in rule.shape)
