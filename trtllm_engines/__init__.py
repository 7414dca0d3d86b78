"""The TensorRT-LLM side: what is built for a target, how, and how it runs behind the engine protocol."""
