"""The one TensorRT-LLM release that everything here is written for, and the names of what our engines add to it.

1.2.1 is the last stable release with the TensorRT engine flow; docs/migration.md says what comes after it. Nothing but
the standard library is imported here, because `target_model.py` reads it inside `trtllm-build`.
"""

from __future__ import annotations

TENSORRT_LLM = "1.2.1"
TENSORRT = "10.14.1"  # what 1.2 is built against, by its release notes
IMAGE = "nvcr.io/nvidia/tritonserver:26.05-trtllm-python-py3"  # ships 1.2.1: triton-inference-server/server#8805
EXAMPLES = "/app/examples"  # where Triton's TensorRT-LLM containers keep convert_checkpoint.py and quantize.py
SM = 90  # compute capability of H20, as H100 and H200; engines are built on the GPU that runs them all the same
TOKENS_PER_BLOCK = 32  # of the paged KV cache; a power of two

CAPTURED = "captured_layers"  # key in the checkpoint's and the engine's config.json
CHUNK = 16  # context rows that a recurrent drafter's engine appends to each of many sequences at once
LONG_CHUNK = 256  # to one sequence alone
DRAFTER_TABLE = "drafter.safetensors"  # beside a drafter's graphs and engines: the tokens it can draft
BESIDE_GRAPHS = (DRAFTER_TABLE, "config.json", "calibration.json")  # what goes from a drafter's graphs to its engines
STAMP = "angelspec.json"  # beside an engine's config.json: what that file does not say


def captured_name(layer: int) -> str:
    """Name of the engine output [T, hidden] of a captured layer, all packed rows.

    The residual stream after decoder layer `layer`; `layer` = number of layers is the output of the final norm. The
    same ids as `target.feature_layers` of the settings.
    """
    return f"captured_{layer}"
