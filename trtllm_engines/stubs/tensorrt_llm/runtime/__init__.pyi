# Read from tensorrt_llm/runtime/__init__.py of NVIDIA/TensorRT-LLM.
from .session import Session as Session
from .session import TensorInfo as TensorInfo
