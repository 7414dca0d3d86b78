"""How close two tokens of the served model were."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from build_scripts.exactness.near_ties import gap
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.settings import load

__all__ = ["gap", "margin"]


@cache
def _reference() -> tuple[Any, Any]:
    folder = resolve_checkpoint(load())
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def margin(request: dict[str, Any], output: list[int], one: int, other: int) -> float:
    """Score gap between two tokens after `output`: logits, plus the keyed noise at temperature above 0."""
    tokenizer, model = _reference()
    text = tokenizer.apply_chat_template(json.loads(request["messages"]), tokenize=False, add_generation_prompt=True)
    return gap(model, tokenizer.encode(text, add_special_tokens=False), request, output, one, other)
