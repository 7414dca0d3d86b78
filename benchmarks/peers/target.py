"""Our own target engine, as the coordinator calls it: sampling and acceptance included. MODEL: the engine's name."""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.peers import worker
from python_backend.assembly.engines import build_target
from python_backend.engine import TargetEngine
from python_backend.protocol import Part, TargetStep
from python_backend.settings import CoordinatorSettings, Settings, TargetSettings


def main(engine: str, threads: str, quantization: str = "exact") -> None:
    wanted = {"engine": engine, "quantization": quantization, "threads": int(threads), "prefix_cache": 0}
    wanted["invariant"] = quantization == "int8-dynamic"  # which has no other form
    limits = CoordinatorSettings(max_sequences=worker.SLOTS, max_length=worker.MAX_LENGTH)
    target = build_target(Settings(target=TargetSettings.model_validate(wanted), coordinator=limits))
    description = target.describe()
    worker.serve(
        f"{description.engine} {description.engine_version}", lambda prompts, steps: measure(target, prompts, steps)
    )


def measure(target: TargetEngine, prompts: worker.Prompts, steps: int) -> float:
    slots = np.arange(len(prompts), dtype=np.int32)
    tokens = list(target.step(make_step(slots, 0, prompts)).next_token)
    past, stamps = len(prompts[0]), []
    for _ in range(steps + 1):
        tokens = list(target.step(make_step(slots, past, [[int(t)] for t in tokens])).next_token)
        stamps.append(time.perf_counter())
        past += 1
    target.release(slots)
    return worker.step_ms([stamps])


def make_step(slot: np.ndarray[tuple[int], np.dtype[np.int32]], past: int, rows: worker.Prompts) -> TargetStep:
    return TargetStep.of([Part(int(s), past, r) for s, r in zip(slot, rows, strict=True)])


if __name__ == "__main__":
    main(*sys.argv[1:])
