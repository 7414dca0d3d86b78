# Read from tensorrt_llm/mapping.py's uses in models/modeling_utils.py of NVIDIA/TensorRT-LLM.
class Mapping:
    rank: int
    tp_size: int
    pp_size: int
