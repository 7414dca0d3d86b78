"""How close two tokens were: recomputed by `transformers`, independent of the engines under test."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from python_backend.engines.checkpoint import resolve_checkpoint
from python_backend.sampling.noise import exponentials
from python_backend.sampling.processors import penalise
from python_backend.settings import load


@cache
def _reference() -> tuple[Any, Any]:
    folder = resolve_checkpoint(load())
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def margin(request: dict[str, Any], output: list[int], one: int, other: int) -> float:
    """Score gap between two tokens after `output`: logits, plus the keyed noise at temperature above 0."""
    tokenizer, model = _reference()
    text = tokenizer.apply_chat_template(json.loads(request["messages"]), tokenize=False, add_generation_prompt=True)
    return gap(model, tokenizer.encode(text, add_special_tokens=False), request, output, one, other)


@torch.inference_mode()
def gap(model: Any, prompt: list[int], request: dict[str, Any], output: list[int], one: int, other: int) -> float:
    """The same by a model of `transformers`, for a prompt of tokens."""
    ids = np.array([*prompt, *output], dtype=np.int32)
    scores = model(torch.from_numpy(ids[None].astype(np.int64)).to(model.device)).logits[0, -1].cpu().numpy().copy()
    penalise(scores, ids, len(prompt), float(request["repetition_penalty"]), 0.0, 0.0)
    if request["temperature"] > 0:
        noise = exponentials(int(request["seed"]), len(ids), len(scores))
        scores = scores / request["temperature"] - np.log(noise)
    return float(abs(scores[one] - scores[other]))
