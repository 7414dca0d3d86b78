"""As much of `tensorrt_llm` as the runtime uses; put this package's parent folder on the path and it is imported."""

__version__ = "1.2.1"
