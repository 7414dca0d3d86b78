"""transformers' `generate` over the float32 checkpoint folder, all prompts in one batch."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import transformers

from benchmarks.peers import worker


class Clock:
    """A stopping criterion that never stops, but notes when each token came."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def __call__(self, input_ids: Any, *_: Any, **__: Any) -> Any:
        self.stamps.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main(model: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    worker.serve(f"transformers {transformers.__version__}", lambda prompts, steps: measure(network, prompts, steps))


def measure(network: Any, prompts: worker.Prompts, steps: int) -> float:
    clock, ids = Clock(), torch.tensor(prompts)
    network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=steps + 1,
        min_new_tokens=steps + 1,
        pad_token_id=0,
        stopping_criteria=transformers.StoppingCriteriaList([clock]),
    )
    return worker.step_ms([clock.stamps])


if __name__ == "__main__":
    main(*sys.argv[1:])
