"""The PyTorch network over paged keys and values that are found by address, as an engine finds them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.engines.torch_attention import KvCache, plan
from python_backend.engines.torch_network import Decoder
from python_backend.protocol import Part, TargetStep, row_starts
from python_backend.rows import row_owners
from trtllm_engines.pin import captured_name
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.contract import ContractError


class PagedNetwork:
    """Computes a pass from the engine's inputs alone."""

    def __init__(self, checkpoint: Path, config: EngineConfig, captured: Sequence[int]) -> None:
        self.config, self.captured = config, tuple(captured)
        self.decoder = Decoder(read_config(checkpoint), load_weights(checkpoint), torch.float32, "cpu")

    @torch.inference_mode()
    def run(self, given: Any, outputs: dict[str, Tensor]) -> None:
        """given: the inputs as attributes."""
        config = self.config
        check_values(given, config)
        count = given.context_lengths.numpy()
        past = given.sequence_length.numpy() - count
        longest = int((past + count).max())
        shape = (config.layers, len(count), config.kv_heads, longest, config.head_dim)
        cache = KvCache(*shape, torch.float32, "cpu")
        units = pool_units(given, config)
        rows = [
            (b, *self._places(given.kv_cache_block_offsets[0, b], int(past[b] + count[b]))) for b in range(len(count))
        ]
        for b, place, offset in rows:
            self._copy(cache, units, b, place[:, : past[b]], offset[: past[b]], into_cache=True)
        texts = np.split(given.input_ids.numpy(), row_starts(count)[1:-1])
        step = TargetStep.of([Part(b, int(past[b]), text.tolist()) for b, text in enumerate(texts)])
        group = self.decoder.config.heads // config.kv_heads
        result = self.decoder.forward(plan(step, group, torch.float32, "cpu", few_runs=False), cache, self.captured)
        for b, place, offset in rows:
            self._copy(cache, units, b, place[:, past[b] :], offset[past[b] :], into_cache=False, first=int(past[b]))
        outputs["logits"].copy_(self.decoder.head(result.hidden[given.last_token_ids.long() - 1]))
        for layer, state in zip(self.captured, result.captured, strict=True):
            outputs[captured_name(layer)].copy_(state)

    def _places(self, offsets: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """[2, length] the block of keys and of values of each position, and [length] its row there."""
        position = torch.arange(length)
        block, offset = position // self.config.tokens_per_block, position % self.config.tokens_per_block
        return offsets[:, block].long(), offset

    def _copy(
        self, cache: KvCache, units: Tensor, b: int, place: Tensor, offset: Tensor, into_cache: bool, first: int = 0
    ) -> None:
        last = first + len(offset)
        for i, layer in enumerate(cache.layers):
            for kind in (0, 1):
                paged = (place[kind] + 2 * i, slice(None), offset)
                if into_cache:
                    layer[b, kind, :, first:last] = units[paged].transpose(0, 1)
                else:
                    units[paged] = layer[b, kind, :, first:last].transpose(0, 1)


def pool_units(given: Any, config: EngineConfig) -> Tensor:
    """[units, kv_heads, tokens_per_block, head_dim] over the memory at the pool's address: one unit holds the keys, or
    the values, of one layer and block."""
    units = int(given.kv_cache_block_offsets.max()) - 1 + 2 * config.layers
    shape = (units, config.kv_heads, config.tokens_per_block, config.head_dim)
    size = int(np.prod(shape)) * torch.float32.itemsize
    memory = (ctypes.c_uint8 * size).from_address(int(given.host_kv_cache_pool_pointers[0, 0]))
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


def check_values(given: Any, config: EngineConfig) -> None:
    """Raise ContractError for values that would make a real engine read or write what it must not."""
    count = given.context_lengths.numpy()
    total = given.sequence_length.numpy()
    owner, offset = row_owners(count)
    offsets = given.kv_cache_block_offsets[0].numpy()
    needed = -(-total // config.tokens_per_block)
    held = np.arange(offsets.shape[2]) < needed[:, None]
    last = given.last_token_ids.numpy()
    claims = {
        "host_context_lengths": (given.host_context_lengths.numpy() == count).all(),
        "context_lengths": count.min() > 0 and count.sum() == len(given.input_ids),
        "host_past_key_value_lengths": (given.host_past_key_value_lengths.numpy() == total).all(),
        "sequence_length": (total >= count).all() and total.max() <= config.max_length,
        "host_request_types": not given.host_request_types.any(),
        "position_ids": len(owner) == len(given.position_ids)
        and (given.position_ids.numpy() == (total - count)[owner] + offset).all(),
        "last_token_ids": last.min() > 0 and last.max() <= len(given.input_ids) and (np.diff(last) > 0).all(),
        "host_kv_cache_block_offsets": (given.host_kv_cache_block_offsets[0].numpy() == offsets).all(),
        "kv_cache_block_offsets": (offsets[:, 1] == offsets[:, 0] + 1)[held].all()
        and not (offsets[:, 0] % (2 * config.layers)).any()
        and not has_repeats(offsets[:, 0], held, total - count, config),
        "host_kv_cache_pool_pointers": given.host_kv_cache_pool_pointers[0, 0] != 0,
        "host_kv_cache_pool_mapping": given.host_kv_cache_pool_mapping.tolist()
        == [[0, i] for i in range(config.layers)],
        "cache_indirection": not given.cache_indirection.any(),
        "host_sink_token_length": not given.host_sink_token_length.any(),
        "host_max_attention_window_sizes": (given.host_max_attention_window_sizes >= int(total.max())).all(),
    }
    for name, holds in claims.items():
        if not holds:
            raise ContractError(f"tensor '{name}' has values that break the contract: {getattr(given, name).tolist()}")


def has_repeats(blocks: Any, held: Any, past: Any, config: EngineConfig) -> bool:
    """Whether a block that is written in this pass is used anywhere else in it."""
    written = held & (np.arange(blocks.shape[1]) >= (past // config.tokens_per_block)[:, None])
    used, times = np.unique(blocks[held], return_counts=True)
    return bool(np.isin(blocks[written], used[times > 1]).any())
