"""As much of `tensorrt` as the runtimes use. Engines of drafter graphs are run by onnxruntime, see `runtime`."""

import enum

__version__ = "10.14.1.48"


class DataType(enum.Enum):
    FLOAT = "float32"
    HALF = "float16"
    BF16 = "bfloat16"
    INT32 = "int32"
    INT64 = "int64"
    INT8 = "int8"


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class Logger:
    INFO, WARNING = 3, 2

    def __init__(self, min_severity=WARNING):
        self.min_severity = min_severity


from tensorrt.runtime import ICudaEngine, IExecutionContext, Runtime  # noqa: E402, F401
