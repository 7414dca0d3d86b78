"""OpenVINO GenAI's continuous batching over the GGUF file, which its reader converts; VARIANT: default or float32."""

from __future__ import annotations

import sys
import time
from collections import defaultdict

import numpy as np
import openvino as ov
import openvino_genai

from benchmarks.peers import worker

# By itself it keeps 8-bit keys and values and rounds activations to 8 bits; float32 is what our `exact` computes.
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def main(model: str, threads: str, variant: str = "default") -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2  # GB
    scheduler.max_num_seqs = worker.SLOTS
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False  # the same prompts come again and again
    properties = {"INFERENCE_NUM_THREADS": int(threads)} | (FLOAT32 if variant == "float32" else {})
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    version = openvino_genai.__version__.split("-")[0]
    worker.serve(f"openvino-genai {version}", lambda prompts, steps: measure(pipeline, prompts, steps))


def measure(pipeline: openvino_genai.ContinuousBatchingPipeline, prompts: worker.Prompts, steps: int) -> float:
    config = openvino_genai.GenerationConfig(max_new_tokens=steps + 1, ignore_eos=True, do_sample=False)
    handles = [pipeline.add_request(i, ov.Tensor(np.array([p])), config) for i, p in enumerate(prompts)]
    stamps: dict[int, list[float]] = defaultdict(list)
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for i, handle in enumerate(handles):
            if handle.can_read():
                stamps[i] += [now] * sum(len(output.generated_ids) for output in handle.read().values())
    return worker.step_ms(list(stamps.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
