"""llama.cpp's server, inside this process, over a GGUF file: all sequences stream at once."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

from benchmarks.peers import worker


def main(model: str, threads: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = worker.SLOTS
    params.n_ctx = worker.SLOTS * worker.MAX_LENGTH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # faster on CPUs
    params.cache_prompt = False  # the same prompts come again and again
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    worker.serve(f"llama.cpp (xllamacpp {xllamacpp.__version__})", lambda p, steps: measure(server, p, steps))


def measure(server: xllamacpp.Server, prompts: worker.Prompts, steps: int) -> float:
    stamps: list[list[float]] = [[] for _ in prompts]

    def ask(i: int) -> None:
        def came(chunk: dict[str, Any]) -> bool:
            if not chunk.get("stop"):  # the last one has no token
                stamps[i].append(time.perf_counter())
            return False

        request = {
            "prompt": prompts[i],
            "n_predict": steps + 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "samplers": ["top_k"],
            "top_k": 1,
            "stream": True,
        }
        server.handle_completions(request, came)

    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(ask, range(len(prompts))))
    return worker.step_ms(stamps)


if __name__ == "__main__":
    main(*sys.argv[1:])
