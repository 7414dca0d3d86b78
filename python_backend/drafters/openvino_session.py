"""A drafter's graphs compiled by OpenVINO for a CPU, over a context in blocks that attention reads where it is."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.drafting import Shortlist, Started
from python_backend.drafters.openvino_graphs import Network, build_graphs, sketched
from python_backend.drafters.session import Append, Asked, Session, check_rows
from python_backend.drafters.sketch import Sketch
from python_backend.engines.openvino_attention import cache_names, check_compiled, check_release
from python_backend.protocol import Array, row_starts

LOOKED_AT = 128  # tokens whose rows of the head are read where a sketch finds candidates (docs/drafters.md)

Values = npt.NDArray[Any]


class PagedContext:
    """Keys and values of every slot, [blocks, kv_heads, block size, head_dim] a layer: each slot has blocks of its own,
    one after the other, so nothing has to be looked up or moved. Memory of rows that were never used is not taken."""

    def __init__(self, config: DrafterConfig, slots: int, rows: int, block_size: int) -> None:
        self.block_size, self.blocks = block_size, -(-rows // block_size)
        shape = (slots * self.blocks, config.kv_heads, block_size, config.head_dim)
        self.caches = [np.zeros(shape, dtype=np.float32) for _ in cache_names(config.layers)]

    def write(self, slot: Array, position: Array, rows: list[Values]) -> None:
        """Store rows [R, kv_heads * head_dim] of every cache at (slot, position) [R]."""
        block, row = slot * self.blocks + position // self.block_size, position % self.block_size
        for cache, values in zip(self.caches, rows, strict=True):
            cache[block, :, row] = values.reshape(len(values), cache.shape[1], cache.shape[3])

    def inputs(self, slot: Array, past: Array, count: Array) -> dict[str, Values]:
        """What attention reads, of sequences that add rows. Its shapes depend on their number alone."""
        return {
            "past_lens": past.astype(np.int32),
            "subsequence_begins": row_starts(count).astype(np.int32),
            "block_indices": (slot[:, None] * self.blocks + np.arange(self.blocks)).reshape(-1).astype(np.int32),
            "block_indices_begins": (np.arange(len(slot) + 1) * self.blocks).astype(np.int32),
            "max_context_len": np.array((past + count).max(), dtype=np.int32),
        }


class Compiled:
    """One graph, ready to run."""

    def __init__(self, graph: ov.Model, threads: int) -> None:
        self.compiled = ov.Core().compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": "f32",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64,  # of 8-bit matrices, where the CPU has VNNI; drafts alone change
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                "ENABLE_CPU_PINNING": False,
            },
        )
        self.names = {port.get_any_name(): i for i, port in enumerate(self.compiled.inputs)}
        self.outputs = [port.get_any_name() for port in self.compiled.outputs]
        self.request = self.compiled.create_infer_request()

    def bind(self, context: PagedContext, layers: int) -> None:
        """Let attention use the context's memory, which must outlive this."""
        for name, cache in zip(cache_names(layers), context.caches, strict=True):
            if name in self.names:
                self.request.set_input_tensor(self.names[name], ov.Tensor(cache, shared_memory=True))

    def __call__(self, **inputs: Values) -> dict[str, Values]:
        """Outputs by name: the graph's own memory, valid until its next pass."""
        for name, values in inputs.items():
            self.request.set_input_tensor(self.names[name], ov.Tensor(values))
        self.request.infer()
        return {name: self.request.get_output_tensor(i).data for i, name in enumerate(self.outputs)}


class OpenVinoSession:
    """Drafts by compiled OpenVINO graphs on a CPU."""

    engine = "openvino"

    def __init__(self, network: Network, slots: int, rows: int, eight_bit: bool, sketch: Sketch | None) -> None:
        """rows: of memory that a slot has. Raises EngineError for another OpenVINO release."""
        self.engine_version = check_release()
        self.dtype = "int8" if eight_bit else "float32"
        self.config = network.config
        threads = len(os.sched_getaffinity(0))
        self.graphs = {
            name: Compiled(graph, threads) for name, graph in build_graphs(network, eight_bit, sketch).items()
        }
        attending = self.graphs["block" if self.config.is_block else "append"]
        self.context = PagedContext(self.config, slots, rows, check_compiled(attending.compiled, self.config))
        for graph in self.graphs.values():
            graph.bind(self.context, self.config.layers)
        self.draft_ids = network.draft_ids.numpy()

    def shortlist(self, outputs: dict[str, Values]) -> Shortlist:
        """Copied: the graph's next pass overwrites it."""
        return Shortlist(torch.from_numpy(self.draft_ids[outputs["index"]]), torch.from_numpy(outputs["scores"].copy()))

    def drafting(self, name: str, candidates: int) -> tuple[Compiled, dict[str, Values]]:
        """The graph that gives so many candidates, and its inputs that say so.

        Few of them are found by a sketch where there is one; many would not all be among those that it looks at.
        """
        most = len(self.draft_ids)
        sizes = {"candidates": np.array(min(candidates, most), dtype=np.int64)}
        by_sketch = self.graphs.get(sketched(name))
        if by_sketch is None or candidates > LOOKED_AT // 2:
            return self.graphs[name], sizes
        return by_sketch, sizes | {"looked_at": np.array(min(LOOKED_AT, most), dtype=np.int64)}


class OpenVinoBlocks(OpenVinoSession):
    """Context rows become keys and values at once; a block looks at them and at itself."""

    def __init__(
        self, network: BlockDrafter, slots: int, rows: int, eight_bit: bool, sketch: Sketch | None = None
    ) -> None:
        super().__init__(network, slots, rows, eight_bit, sketch)
        self.extra = 0 if network.parts.anchor_first else 1  # slots of a block beyond its drafts

    def append(self, new: Append) -> None:
        starts = row_starts(new.count)
        if not starts[-1]:
            return
        position = np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count)
        rows = self.graphs["context"](features=_floats(new.features), positions=position)
        self.context.write(np.repeat(new.slot, new.count), position, list(rows.values()))

    def start(self, new: Append, asked: Asked) -> Started:
        self.append(new)
        n, slots = len(asked.member), asked.depth + self.extra
        past, anchor = new.end[asked.member].astype(np.int64), asked.anchor.astype(np.int64)
        own = np.zeros((n, slots), dtype=np.int64)
        own[:, 0] = np.arange(1, n + 1)  # the anchor; masks after it
        inputs = {
            "tokens": anchor,
            "slot_tokens": own.reshape(-1),
            "positions": (past[:, None] + np.arange(slots)).reshape(-1),
            "together": np.ones(n * slots, dtype=np.int32),
            "order": (np.arange(n) * slots + np.arange(self.extra, slots)[:, None]).reshape(-1),
            **self.context.inputs(new.slot[asked.member], past, np.full(n, slots)),
        }
        if "follow" not in self.graphs:
            block, sizes = self.drafting("block", asked.candidates)
            every = [tensor.view(asked.depth, n, -1) for tensor in self.shortlist(block(**inputs, **sizes))]
            return Started(Shortlist(*(t[0] for t in every)), lambda number, _: Shortlist(*(t[number] for t in every)))
        waiting = self.graphs["block"](**inputs)["waiting"].reshape(asked.depth, n, -1)
        graph, sizes = self.drafting("follow", asked.candidates)

        def follow(number: int, previous: Values) -> Shortlist:
            return self.shortlist(graph(waiting=waiting[number], tokens=previous, **sizes))

        return Started(follow(0, anchor), lambda number, previous: follow(number, previous.numpy()))


class OpenVinoChains(OpenVinoSession):
    """Context rows are depth 0 themselves; the last one's state starts the chain."""

    def append(self, new: Append) -> None:
        self._append(new, np.zeros(0, dtype=np.int64), 1)

    def start(self, new: Append, asked: Asked) -> Started:
        state = self._append(new, asked.member, asked.candidates)
        slot, begin = new.slot[asked.member], new.end[asked.member].astype(np.int64)
        graph, sizes = self.drafting("step", asked.candidates)

        def follow(number: int, previous: Tensor) -> Shortlist:
            nonlocal state
            position = begin + number - 1
            state = graph(
                carried=state["carried"],
                tokens=previous.numpy(),
                positions=position,
                **sizes,
                **self.context.inputs(slot, position, np.ones_like(position)),
            )
            return self.shortlist(state)

        return Started(self.shortlist(state), follow)

    def _append(self, new: Append, member: Array, candidates: int) -> dict[str, Values]:
        """Rows of all sequences, and the first draft of some."""
        check_rows(new)
        starts = row_starts(new.count)
        graph, sizes = self.drafting("append", candidates)
        return graph(
            features=_floats(new.features),
            tokens=new.following.astype(np.int64),
            positions=np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count),
            order=starts[1:][member] - 1,
            **sizes,
            **self.context.inputs(new.slot, new.past, new.count),
        )


def _floats(features: Any) -> Values:
    """[C, F] float32. A target in the same process leaves a tensor, in its own dtype."""
    return features.float().cpu().numpy() if isinstance(features, Tensor) else np.asarray(features, dtype=np.float32)


def openvino_session(network: Network, slots: int, rows: int, eight_bit: bool, sketch: Sketch | None = None) -> Session:
    """sketch: of the head, to read less of it. Raises EngineError for another OpenVINO release."""
    if isinstance(network, BlockDrafter):
        return OpenVinoBlocks(network, slots, rows, eight_bit, sketch)
    return OpenVinoChains(network, slots, rows, eight_bit, sketch)
