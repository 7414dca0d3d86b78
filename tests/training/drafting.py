"""Small drafter networks over a random target, and texts whose states say what comes next."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.network import TargetParts
from python_backend.drafters.weights import build_network
from training.corpus.shards import Sample
from training.fit.batches import Text, read_texts

VOCABULARY, HIDDEN, LAYERS = 40, 32, 3
FINAL = LAYERS  # the captured layer that is the final norm's output
KINDS = ("mtp", "eagle3", "dfly", "dflash", "dflare", "dspark")
BLOCKS, RECURRENT = KINDS[2:], KINDS[:2]


def feature_layers(kind: str) -> tuple[int, ...]:
    return (FINAL,) if kind == "mtp" else (0, 1, 2)


def toy_target(seed: int = 0) -> TargetParts:
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    return TargetParts(embedding, embedding, torch.ones(HIDDEN), 1.0 / 100 ** (torch.arange(0, 8, 2) / 8))


def toy_config(kind: str, **changes: Any) -> DrafterConfig:
    shape = {
        "kind": kind,
        "depth": 4,
        "layers": 2 if kind in BLOCKS else 1,
        "feature_layers": feature_layers(kind),
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "norm_epsilon": 1e-5,
        "rope_scale": 1.0,
        "qk_norm": True,
        "vocabulary_size": VOCABULARY,
        "draft_vocabulary_size": VOCABULARY - 8,
        "markov_rank": 8,
        "max_position": 128,
        "target_sha256": "toy",
    }
    return DrafterConfig(**(shape | changes))


def toy_network(kind: str, seed: int = 1, spread: float = 0.3, **changes: Any):
    """spread: of all weights, so that every path shows in the output; those that start at zero too."""
    config = toy_config(kind, **changes)
    draft_ids = torch.arange(config.draft_vocabulary_size) + 4
    torch.manual_seed(seed)
    network = build_network(config, toy_target(), draft_ids, torch.ones(len(config.feature_layers)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * spread + (1.0 if parameter.ndim == 1 else 0.0))
    return network


def toy_texts(count: int, kind: str = "dfly", seed: int = 0) -> list[Text]:
    """Texts in which a token follows from the one before; the final state of each row points at the next token."""
    rng = np.random.default_rng(seed)
    embedding = toy_target().embedding.numpy()
    texts = []
    for _ in range(count):
        length = int(rng.integers(14, 30))
        ids = [int(rng.integers(4, VOCABULARY - 4))]
        while len(ids) < length:
            ids.append(4 + (ids[-1] * 5 + 3) % (VOCABULARY - 8))
        array = np.array(ids, dtype=np.int64)
        following = np.append(array[1:], 4)
        states = rng.normal(size=(length, LAYERS + 1, HIDDEN)).astype(np.float32)
        states[:, FINAL] = embedding[following] * 2
        states[:, 1] += embedding[following]
        features = torch.from_numpy(states[:-1].reshape(length - 1, -1))
        sample = Sample(array, int(rng.integers(2, 6)), "chat", 0.0, 0, features)
        texts += read_texts([sample], range(LAYERS + 1), feature_layers(kind), FINAL)
    return texts
