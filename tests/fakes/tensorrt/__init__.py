"""As much of `tensorrt` as the runtime uses."""

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
