"""The target's tokenizer and the tokens that end its turn, read from the checkpoint's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

NAMES_OF_5 = ("TokenizersBackend",)  # what transformers 5 writes for PreTrainedTokenizerFast, and 4 does not know


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of a checkpoint, with its chat template where it has one."""
    file = folder / "tokenizer_config.json"
    named = json.loads(file.read_text()).get("tokenizer_class") if file.is_file() else None
    kind = PreTrainedTokenizerFast if named in NAMES_OF_5 else AutoTokenizer
    return kind.from_pretrained(folder, local_files_only=True)


def end_ids(folder: Path) -> tuple[int, ...]:
    """Tokens that end generation: `eos_token_id` of generation_config.json, else of config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if file.is_file() and (ids := json.loads(file.read_text()).get("eos_token_id")) is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def vocabulary_size(folder: Path) -> int:
    """Tokens of the model, as config.json says; 0 where it does not."""
    file = folder / "config.json"
    return int(json.loads(file.read_text()).get("vocab_size") or 0) if file.is_file() else 0
