"""Engines of ONNX graphs that are strict where the real ones are undefined: what they read is at the addresses given.

An engine is JSON: the graph's file, the ranges of its profiles by dimension name and, for engines that are wrong on
purpose, what differs in the tensors that they declare. A refusal is False, as the real API has it; what would make a
GPU read memory that is not the caller's is an error.
"""

import ctypes
import json

import numpy as np
import onnxruntime
from tensorrt import DataType, ExecutionContextAllocationStrategy, TensorIOMode

SCRATCH = 4096
DTYPES = {"tensor(float)": DataType.FLOAT, "tensor(int64)": DataType.INT64}
ARRAYS = {DataType.FLOAT: np.float32, DataType.INT64: np.int64}


class Runtime:
    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine):
        record = json.loads(serialized_engine)
        return None if record.get("release") else ICudaEngine(record)


class Tensor:
    def __init__(self, node, mode, wrong):
        self.mode, self.dimensions = mode, list(node.shape)
        self.dtype = DataType(wrong.get("dtype", {}).get(node.name, DTYPES[node.type].value))
        self.shape = tuple(wrong.get("shape", {}).get(node.name, [d if isinstance(d, int) else -1 for d in node.shape]))


class ICudaEngine:
    device_memory_size_v2 = SCRATCH

    def __init__(self, record):
        self.profiles, wrong = record["profiles"], record.get("wrong", {})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(record["graph"], options)
        self.tensors = {}
        sides = ((self.session.get_inputs(), TensorIOMode.INPUT), (self.session.get_outputs(), TensorIOMode.OUTPUT))
        for nodes, mode in sides:
            for node in nodes:
                if node.name not in wrong.get("drop", ()):
                    self.tensors[wrong.get("rename", {}).get(node.name, node.name)] = Tensor(node, mode, wrong)
        self.num_io_tensors, self.num_optimization_profiles = len(self.tensors), len(self.profiles)
        self.passes = 0

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return self.tensors[name].mode if name in self.tensors else TensorIOMode.NONE

    def get_tensor_dtype(self, name):
        return self.tensors[name].dtype

    def get_tensor_shape(self, name):
        return self.tensors[name].shape

    def get_tensor_profile_shape(self, name, profile_index):
        sizes = self.profiles[profile_index]
        return [
            tuple(d if isinstance(d, int) else sizes[d][bound] for d in self.tensors[name].dimensions)
            for bound in range(3)
        ]

    def create_execution_context(self, strategy=ExecutionContextAllocationStrategy.STATIC):
        return IExecutionContext(self, strategy)


class IExecutionContext:
    def __init__(self, engine, strategy):
        self.engine = engine
        self.has_memory = strategy is not ExecutionContextAllocationStrategy.USER_MANAGED
        self.profile, self.shapes, self.addresses = 0, {}, {}

    def set_device_memory(self, memory, size):
        if memory == 0 or size < SCRATCH:
            raise ValueError(f"{size} bytes of memory at {memory}, {SCRATCH} are needed")
        self.has_memory = True

    def set_optimization_profile_async(self, profile_index, stream_handle):
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            return False
        self.profile, self.shapes = profile_index, {}
        return True

    def set_input_shape(self, name, shape):
        if self.engine.get_tensor_mode(name) is not TensorIOMode.INPUT:
            return False
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        if len(shape) != len(least) or not all(a <= s <= b for a, s, b in zip(least, shape, most, strict=True)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name):
        if self.engine.get_tensor_mode(name) is TensorIOMode.INPUT:
            return self.shapes.get(name, self.engine.get_tensor_shape(name))
        sizes = self._sizes()
        return tuple(sizes.get(d, -1) if isinstance(d, str) else d for d in self.engine.tensors[name].dimensions)

    def set_tensor_address(self, name, memory):
        if self.engine.get_tensor_mode(name) is TensorIOMode.NONE or memory == 0:
            return False
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle):
        names = list(self.engine.tensors)
        inputs = [n for n in names if self.engine.get_tensor_mode(n) is TensorIOMode.INPUT]
        if not self.has_memory or set(names) - set(self.addresses) or set(inputs) - set(self.shapes):
            return False
        sizes = self._sizes()
        given = {name: self._memory(name, self.shapes[name]).copy() for name in inputs}
        check_values(given, sizes)
        outputs = [name for name in names if name not in inputs]
        for name, values in zip(outputs, self.engine.session.run(outputs, given), strict=True):
            self._memory(name, values.shape)[...] = values
        self.addresses = {}  # whatever they point to may be gone before the next pass
        self.engine.passes += 1
        return True

    def _sizes(self):
        """Of the dynamic dimensions, which have to agree among the inputs."""
        sizes = {}
        for name, shape in self.shapes.items():
            for dimension, size in zip(self.engine.tensors[name].dimensions, shape, strict=True):
                if isinstance(dimension, str) and sizes.setdefault(dimension, size) != size:
                    raise ValueError(f"'{name}' says that {dimension} is {size}, another input {sizes[dimension]}")
        return sizes

    def _memory(self, name, shape):
        dtype = np.dtype(ARRAYS[self.engine.get_tensor_dtype(name)])
        size = int(np.prod(shape)) * dtype.itemsize
        memory = (ctypes.c_uint8 * size).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype=dtype).reshape(shape)


def check_values(given, sizes):
    """Raise ValueError for values that would make a real engine read what is not the caller's."""
    limits = {"length": sizes.get("context"), "count": sizes.get("chunk")}
    for name, most in limits.items():
        if name in given and not (int(name == "count") <= given[name].min() and given[name].max() <= most):
            raise ValueError(f"'{name}' is {given[name].tolist()}, limit {most}")
