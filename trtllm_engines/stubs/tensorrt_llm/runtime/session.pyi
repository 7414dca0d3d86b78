# Read from tensorrt_llm/runtime/session.py of NVIDIA/TensorRT-LLM, commit 46d548bf.
from dataclasses import dataclass

import tensorrt as trt
from torch import Tensor

@dataclass
class TensorInfo:
    name: str
    dtype: trt.DataType
    shape: tuple[int, ...]

class Session:
    @staticmethod
    def from_serialized_engine(engine: bytes) -> Session: ...
    @property
    def engine(self) -> trt.ICudaEngine: ...
    # None if it failed.
    def infer_shapes(self, inputs: list[TensorInfo]) -> list[TensorInfo] | None: ...
    # An asynchronous call; a value is a tensor or a device address.
    def run(self, inputs: dict[str, Tensor | int], outputs: dict[str, Tensor | int], stream: int) -> bool: ...
