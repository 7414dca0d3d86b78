"""Who answers the calls, and the operations that a call can ask for."""

from __future__ import annotations

from dataclasses import dataclass

STEP, DESCRIBE, OPEN, RELEASE = "step", "describe", "open", "release"
OPERATION = "operation"  # request parameter that selects one of them
HOSTED = "drafter"  # request parameter: the drafter in the target's process that a call is for
DESCRIPTION = "description"  # STRING [1]: JSON of a Description


@dataclass(frozen=True)
class Description:
    """Who answers the calls; compared at start-up by `coordinator.handshake`."""

    name: str
    role: str  # "target" or "drafter"
    engine: str  # "torch", "openvino", "tensorrt_llm", "prompt_lookup", …
    engine_version: str
    dtype: str
    device: str
    weights_sha256: str  # empty for a drafter without weights
    vocabulary_size: int
    slots: int
    max_length: int
    feature_layers: tuple[int, ...]  # target: what it captures; drafter: what it needs
    feature_size: int  # F
    max_depth: int = 0  # drafter: the longest draft
    target_sha256: str = ""  # drafter: the target it was trained for; empty = any
    hosted: bool = False  # drafter: in the target's process, where it finds its features by slot and position
    hardware: str = ""  # the device that it runs on, where that is not the CPU
    build: str = ""  # of an engine that is built from its weights: which one
    prefix_block: int = 0  # target: rows that sequences share at a time; 0 = it shares none and is not asked to `open`
