"""A Session that is strict where the real one is undefined, and that computes with the PyTorch network.

Keys and values are where the runtime's block tables and pool address say, and nowhere else: what it did not write, or
gave away, is not there. An engine is JSON: the checkpoint to compute with, the captured layers, the engine's own
config.json and, for engines that are wrong on purpose, what differs from the contract.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from tensorrt import DataType, TensorIOMode

from tests.fakes.paged_network import PagedNetwork
from trtllm_engines.runtime.config import CONFIG, EngineConfig
from trtllm_engines.runtime.contract import ContractError, check_fed, input_rules, output_rules


@dataclass
class TensorInfo:
    name: str
    dtype: DataType
    shape: tuple


class Engine:
    """The tensors that an engine declares; -1 where a dimension is not fixed."""

    def __init__(self, inputs, outputs, wrong):
        self._tensors = {}
        for rule, mode in [(r, TensorIOMode.INPUT) for r in inputs] + [(r, TensorIOMode.OUTPUT) for r in outputs]:
            if rule.name not in wrong.get("drop", ()):
                name = wrong.get("rename", {}).get(rule.name, rule.name)
                shape = wrong.get("shape", {}).get(rule.name, [-1 if isinstance(d, str) else d for d in rule.shape])
                dtype = wrong.get("dtype", {}).get(rule.name, rule.dtype)
                self._tensors[name] = (mode, DataType(dtype), tuple(shape))
        for name, dtype, shape in wrong.get("add", ()):
            self._tensors[name] = (TensorIOMode.INPUT, DataType(dtype), tuple(shape))
        self.num_io_tensors = len(self._tensors)

    def get_tensor_name(self, index):
        return list(self._tensors)[index]

    def get_tensor_mode(self, name):
        return self._tensors[name][0] if name in self._tensors else TensorIOMode.NONE

    def get_tensor_dtype(self, name):
        return self._tensors[name][1]

    def get_tensor_shape(self, name):
        return self._tensors[name][2]


class Session:
    @staticmethod
    def from_serialized_engine(engine):
        session = Session()
        session._load(json.loads(engine))
        return session

    def _load(self, record):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / CONFIG).write_text(json.dumps(record["config"]))
            self.config = EngineConfig.read(Path(folder))
        self.inputs = input_rules(self.config)
        self.outputs = output_rules(self.config, record["captured"])
        self.engine = Engine(self.inputs, self.outputs, record.get("wrong", {}))
        self.network = PagedNetwork(Path(record["checkpoint"]), self.config, record["captured"])
        self.shapes = None
        self.passes = 0

    def infer_shapes(self, inputs, context=None):
        for info in inputs:
            if self.engine.get_tensor_mode(info.name) != TensorIOMode.INPUT:
                raise ValueError(f"Tensor:{info.name} is not an input tensor")
            if self.engine.get_tensor_dtype(info.name) != info.dtype:
                raise ValueError(f"Tensor:{info.name} has wrong dtype")
        self.shapes = {info.name: tuple(info.shape) for info in inputs}
        counts = self._counts(self.shapes)
        return [
            TensorInfo(r.name, DataType(r.dtype), tuple(counts[d] if isinstance(d, str) else d for d in r.shape))
            for r in self.outputs
        ]

    def run(self, inputs, outputs, stream, context=None):
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        if self.shapes is None:
            raise ContractError("run was called before infer_shapes: the engine does not know the pass's shapes")
        if shapes != self.shapes:
            changed = sorted(n for n in {**shapes, **self.shapes} if shapes.get(n) != self.shapes.get(n))
            raise ContractError(f"the shapes of {', '.join(changed)} changed after infer_shapes")
        counts = self._counts(shapes)
        for rules, tensors in ((self.inputs, inputs), (self.outputs, outputs)):
            self._check(rules, tensors, counts)
        self.network.run(SimpleNamespace(**inputs), outputs)
        self.passes += 1
        return True

    def _check(self, rules, tensors, counts):
        if missing := [rule.name for rule in rules if rule.name not in tensors]:
            raise ContractError(f"tensor '{missing[0]}' has no address")
        if unknown := set(tensors) - {rule.name for rule in rules}:
            raise ContractError(f"tensor '{min(unknown)}' is not one of the engine's")
        for rule in rules:
            tensor = tensors[rule.name]
            # On a machine without a GPU both kinds of memory are the host's: only what says so can be checked.
            memory = rule.memory if tensor.device.type == "cpu" else "device"
            dtype = str(tensor.dtype).removeprefix("torch.")
            check_fed(rule.name, dtype, tuple(tensor.shape), memory, rule, counts)
            if not tensor.is_contiguous():
                raise ContractError(f"tensor '{rule.name}' is not contiguous: an address says nothing of strides")

    def _counts(self, shapes):
        config, counts = self.config, {}
        for count, name, axis, limit in (
            ("R", "input_ids", 0, config.max_rows),
            ("B", "sequence_length", 0, config.max_sequences),
            ("N", "last_token_ids", 0, config.max_logit_rows),
            ("L", "cache_indirection", -1, config.max_length),
            ("P", "kv_cache_block_offsets", -1, config.blocks_per_sequence),
        ):
            if name not in shapes:
                raise ContractError(f"tensor '{name}' has no shape")
            counts[count] = shapes[name][axis]
            if not 1 <= counts[count] <= limit:
                raise ContractError(f"{count} is {counts[count]}, the engine's profile goes from 1 to {limit}")
        return counts
