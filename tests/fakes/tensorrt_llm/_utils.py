"""Conversions between the types of torch and TensorRT."""

import torch
from tensorrt import DataType


def torch_dtype_to_trt(dtype):
    return DataType(str(dtype).removeprefix("torch."))


def trt_dtype_to_torch(dtype):
    return getattr(torch, dtype.value)
