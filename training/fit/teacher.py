"""The target's captured states, computed on a GPU when they are needed; there, that is quicker than reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

from python_backend.protocol import Array
from training.corpus.shards import Corpus, Sample

ROWS_AT_ONCE = 32768  # padded rows of a pass


class Teacher:
    """The target, as transformers runs it, in float32."""

    def __init__(self, checkpoint: Path, device: str) -> None:
        self.device = device
        self.model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).to(device).eval()

    def samples(self, corpus: Corpus, layers: Sequence[int]) -> Iterator[Sample]:
        """All sequences of a corpus, in order; features of `layers` on the device."""
        for shard in corpus.shards():
            for i, features in enumerate(self.states(shard.ids(), layers)):
                yield shard.sample(i, features)

    @torch.no_grad()
    def states(self, sequences: Sequence[Array], layers: Sequence[int]) -> list[Tensor]:
        """[n - 1, F] bfloat16 of each sequence: residual streams after these layers; the number of layers means the
        final norm's output. Sequences of like length share a pass; what is padded comes after all that is read."""
        states: dict[int, Tensor] = {}
        waiting = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        while waiting:
            together = max(ROWS_AT_ONCE // len(sequences[waiting[-1]]), 1)
            batch, waiting = waiting[-together:], waiting[:-together]
            ids = pad_sequence([torch.from_numpy(sequences[i][:-1]) for i in batch], batch_first=True)
            hidden = self.model(ids.to(self.device), use_cache=False, output_hidden_states=True).hidden_states
            captured = torch.cat([hidden[_place(layer, len(hidden))] for layer in layers], -1).bfloat16()
            for row, i in enumerate(batch):
                states[i] = captured[row, : len(sequences[i]) - 1].clone()
        return [states[i] for i in range(len(sequences))]


def _place(layer: int, count: int) -> int:
    """Where transformers lists a layer's output: after the embedding, the last one normed. Raises ValueError for the
    last layer's own, which it does not give."""
    if layer == count - 2:
        raise ValueError(f"layer {layer} is not to be had before the final norm: take {count - 3} or {count - 1}")
    return min(layer + 1, count - 1)
