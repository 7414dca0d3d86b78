"""The OpenVINO target engine: paged attention over weights as they are stored, on a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov

from python_backend.checkpoints.checkpoint import CheckpointError, weights_sha256
from python_backend.checkpoints.decoder import read_config
from python_backend.engines.blocks import BlockTables
from python_backend.engines.openvino_attention import cache_names, check_compiled, check_release
from python_backend.engines.openvino_graph import build_graph
from python_backend.engines.openvino_requests import Requests
from python_backend.engines.openvino_rows import FREE, INVARIANT, Piece, cut, lay_out, lengths
from python_backend.engines.openvino_weights import Weights, read_weights
from python_backend.engines.quantization import in_effect
from python_backend.engines.self_check import CHECK_ROWS, load_reference, self_check
from python_backend.engines.slots import Slots, check_fits, committed_rows
from python_backend.protocol import Array, Description, PrefixHit, PrefixQuery, TargetResult, TargetStep
from python_backend.sampling.verify import accept, logit_rows
from python_backend.settings import CoordinatorSettings, TargetSettings

Floats = npt.NDArray[np.float32]
NO_FEATURES: Floats = np.zeros((0, 0), dtype=np.float32)


class Outputs(NamedTuple):
    """What a step computed: views of the graph's own memory or copies, valid until the next pass."""

    logits: Floats  # [N, V] of the rows asked for
    features: Floats | None  # [R, F] of the packed rows


class OpenVinoEngine:
    """A `TargetEngine` over a local checkpoint folder, on a CPU.

    Raises CheckpointError for a checkpoint that is not supported, EngineError for another OpenVINO release and where
    the logits disagree with the reference.
    """

    def __init__(self, folder: Path, target: TargetSettings, coordinator: CoordinatorSettings) -> None:
        target = in_effect(target)
        self.version = check_release()
        self.config = read_config(folder)
        if self.config.experts:
            raise CheckpointError(f"'{folder}' has experts, which target.engine openvino has not: use torch")
        check_fits(self.config.max_position, self.config.layers, target, coordinator)
        self.target = target
        self.folder = folder
        self.sha256 = weights_sha256(folder)
        self.slots = Slots(coordinator.max_sequences, coordinator.max_length, self.config.vocabulary_size)
        self.limits = INVARIANT if target.invariant else FREE
        longest = max(self.slots.max_length + self.limits.fewest - 1, CHECK_ROWS)
        weights = Weights(read_weights(folder, target.quantization))
        graph = build_graph(self.config, weights, target.feature_layers, longest, target.invariant)
        compiled = [compile_graph(graph, target) for _ in range(target.compiled_copies)]
        block_size = check_compiled(compiled[0], self.config)
        self.blocks = BlockTables(self.slots.count, longest, block_size, target.prefix_cache // block_size)
        self.input_index = {port.get_any_name(): i for i, port in enumerate(compiled[0].inputs)}  # faster than by name
        self.caches = self._allocate_caches()
        self.requests = Requests([self._request(graph) for graph in compiled])
        size = self.feature_size if self.blocks.pool.keep else 0
        self.kept_features: Floats = np.zeros((self.blocks.pool.count, block_size, size), dtype=np.float32)
        reference = load_reference(folder, self.sha256, self.config.vocabulary_size)
        self_check(reference, target, lambda step: self.forward(step, np.arange(len(step.token_ids))).logits)
        self.blocks.release(np.zeros(1, dtype=np.int32))

    def describe(self) -> Description:
        return Description(
            name=self.folder.name,
            role="target",
            engine="openvino",
            engine_version=self.version,
            dtype=f"{self.target.quantization}, invariant" if self.target.invariant else self.target.quantization,
            device="cpu",
            weights_sha256=self.sha256,
            vocabulary_size=self.config.vocabulary_size,
            slots=self.slots.count,
            max_length=self.slots.max_length,
            feature_layers=self.target.feature_layers,
            feature_size=self.feature_size,
            prefix_block=self.blocks.block_size if self.blocks.pool.keep else 0,
        )

    @property
    def feature_size(self) -> int:
        return len(self.target.feature_layers) * self.config.hidden_size

    def open(self, opening: PrefixQuery) -> PrefixHit:
        """Let prompts begin with rows that others left. Raises ProtocolError where they break the contract."""
        prompts = self.slots.open(opening)
        held = np.array([self.blocks.open(int(s), t) for s, t in zip(opening.slot, prompts, strict=True)], np.int32)
        self.slots.stored[opening.slot] = held
        nothing = np.zeros_like(held)
        count = held if self.kept_features.size else nothing
        features = self.kept_features[self.blocks.places(opening.slot, nothing, count)]
        return PrefixHit(held=held, feature_count=count, features=features if count.any() else NO_FEATURES)

    def step(self, step: TargetStep) -> TargetResult:
        """Run, sample, accept, commit. Raises ProtocolError where the step breaks the contract."""
        self.slots.begin(step)
        outputs = self.forward(step, logit_rows(step))
        acceptance = accept(step, outputs.logits, self.slots.history)
        committed = self.slots.commit(step, acceptance.accepted)
        features = NO_FEATURES if outputs.features is None else outputs.features[committed_rows(step, committed)]
        if self.kept_features.size:
            self.kept_features[self.blocks.places(step.slot, step.past_length, committed)] = features
        self.blocks.seal(step.slot, self.slots.stored[step.slot], self.slots.history.tokens)
        return TargetResult(
            accepted=acceptance.accepted,
            next_token=acceptance.next_token,
            feature_count=np.zeros_like(committed) if outputs.features is None else committed,
            features=features,
            log_prob_count=acceptance.log_prob_count,
            log_probs=acceptance.log_probs,
        )

    def forward(self, step: TargetStep, wanted: Array) -> Outputs:
        """Run all rows of a step and store their keys and values. wanted: [N] packed rows that need logits."""
        passes = [self._pass(step, piece, wanted) for piece in cut(step, self.limits.most)]
        if len(passes) == 1:
            return passes[0]
        features = [p.features for p in passes if p.features is not None]
        return Outputs(np.concatenate([p.logits for p in passes]), np.concatenate(features) if features else None)

    def _pass(self, step: TargetStep, piece: Piece, wanted: Array) -> Outputs:
        mine = wanted[(wanted >= piece.first) & (wanted < piece.last)] - piece.first
        token_ids = step.token_ids[piece.first : piece.last]
        for copy in self.blocks.prepare(piece.slot, piece.past, lengths(piece, self.limits)):
            for store in (*self.caches, self.kept_features):
                store[copy.target] = store[copy.source]
        blocks = self.blocks.indices(piece.slot)
        request = self.requests.at((len(piece.slot), len(token_ids), len(mine)))
        for name, values in lay_out(piece, blocks, token_ids, mine, self.limits).items():
            request.set_input_tensor(self.input_index[name], ov.Tensor(values))
        request.infer()
        logits = request.get_output_tensor(0).data[: len(mine)]
        features = request.get_output_tensor(1).data[: len(token_ids)] if self.target.feature_layers else None
        if piece.last - piece.first < len(step.token_ids):  # another pass follows and would overwrite them
            return Outputs(logits.copy(), None if features is None else features.copy())
        return Outputs(logits, features)

    def release(self, slot: Array) -> None:
        self.slots.release(slot)
        self.blocks.release(slot)

    def _allocate_caches(self) -> list[Floats]:
        """A cache for every layer. Memory of blocks that were never used is reserved, not used."""
        shape = (self.blocks.pool.count, self.config.kv_heads, self.blocks.block_size, self.config.head_dim)
        return [np.zeros(shape, dtype=np.float32) for _ in cache_names(self.config.layers)]

    def _request(self, compiled: ov.CompiledModel) -> ov.InferRequest:
        """One that works on the caches, which it does not keep alive: whoever holds it must hold them too."""
        request = compiled.create_infer_request()
        for name, cache in zip(cache_names(self.config.layers), self.caches, strict=True):
            request.set_tensor(name, ov.Tensor(cache, shared_memory=True))
        return request


def compile_graph(graph: ov.Model, target: TargetSettings) -> ov.CompiledModel:
    """Compile for the CPU. Everything that can change results is set here: the plugin's own choices differ."""
    return ov.Core().compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",  # 8 bits would let rejected drafts change the codes of accepted rows
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if target.quantization == "int8-dynamic" else 0,
            "INFERENCE_NUM_THREADS": target.threads or len(os.sched_getaffinity(0)),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # the coordinator shares the cores
        },
    )
