# Read from tensorrt_llm/models/__init__.py of NVIDIA/TensorRT-LLM, commit b57221b7.
from .llama.model import LLaMAForCausalLM as LLaMAForCausalLM
from .modeling_utils import PretrainedConfig as PretrainedConfig
from .qwen.model import QWenForCausalLM as QWenForCausalLM
