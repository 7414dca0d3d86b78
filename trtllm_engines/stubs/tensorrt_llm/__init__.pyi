# Read from tensorrt_llm/version.py of NVIDIA/TensorRT-LLM.
__version__: str
