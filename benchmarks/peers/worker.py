"""A worker's side: loads an engine once, then measures plain decoding whenever it is asked on standard input.

One JSON object a line. First it says {"version": …}; to {"sequences": B, "prompt": P, "steps": N} it answers
{"step_ms": …}: what one step of all B sequences takes while they decode, the prompts being over.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

VOCABULARY = 49152
SLOTS, MAX_LENGTH = 32, 256

Prompts = list[list[int]]
Measure = Callable[[Prompts, int], float]  # prompts, steps -> ms a step


def serve(version: str, measure: Measure) -> None:
    """Answer until standard input ends. What an engine itself prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps({"version": version}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = random_prompts(asked["sequences"], asked["prompt"])
        print(json.dumps({"step_ms": measure(prompts, asked["steps"])}), file=answers)


def random_prompts(sequences: int, length: int) -> Prompts:
    """The same for every engine; what the tokens are does not matter to the time."""
    tokens: Prompts = np.random.default_rng(0).integers(0, VOCABULARY, size=(sequences, length)).tolist()
    return tokens


def step_ms(stamps: Sequence[Sequence[float]]) -> float:
    """Mean step while every sequence decodes: from when the last of them began until the first of them ended.

    stamps: seconds at which each sequence's tokens came.
    """
    begin, end = max(s[0] for s in stamps), min(s[-1] for s in stamps)
    steps = fmean(sum(begin < t <= end for t in s) for s in stamps)
    if not steps:
        raise ValueError("the sequences never decoded together: ask for more steps")
    return (end - begin) / steps * 1e3
