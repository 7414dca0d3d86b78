"""Rotary frequencies of a checkpoint's configuration, as transformers 4.57 and 5 read it.

Release 5 has one dictionary, `rope_parameters`; 4 has `rope_theta` beside `rope_scaling`, and takes the dictionary of a
file that 5 wrote for an attribute it does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from python_backend.checkpoints.checkpoint import CheckpointError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the sequence


def rope(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies [head_dim / 2] float32, radians per position, and the factor on cos and sin.

    config: of transformers. Raises CheckpointError naming what is not supported.
    """
    parameters = rope_parameters(config)
    kind, theta = parameters["rope_type"], parameters["rope_theta"]
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"rope type is '{kind}'; supported: {', '.join(ROPE_TYPES)}")
    if parameters["partial_rotary_factor"] != 1.0:
        raise CheckpointError(f"partial_rotary_factor is {parameters['partial_rotary_factor']}; supported: 1.0")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / theta**exponents, 1.0
    if not hasattr(type(config), "standardize_rope_params"):  # before 5, its functions read these
        config.rope_theta, config.rope_scaling = theta, parameters
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    return frequencies.float(), float(scale)


def rope_parameters(config: Any) -> dict[str, Any]:
    """What release 5 calls so, with rope_type, rope_theta and partial_rotary_factor always there.

    Raises CheckpointError where each type of layer has parameters of its own.
    """
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if any(isinstance(value, dict) for value in given.values()):
        raise CheckpointError(f"rope parameters differ between types of layers ({', '.join(given)}): not supported")
    return {
        "rope_type": given.get("type", "default"),
        "rope_theta": getattr(config, "rope_theta", None),
        "partial_rotary_factor": getattr(config, "partial_rotary_factor", None) or 1.0,
        **given,
    }
