"""The second moment of the states that a drafter's head reads: a sketch of the head is made from it at loading.

    python -m training.fit.sketch model_repository/drafter_mtp/1

Drafts over held-out texts: 576 directions need some thousand states, not more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checkpoints.decoder import read_config
from python_backend.drafters.sketch import SKETCH, save_moment
from python_backend.drafters.weights import load as load_network
from python_backend.settings import load
from training.corpus.shards import Sample
from training.evaluate.acceptance import draft_text
from training.evaluate.eval_drafters import read_pairs
from training.evaluate.simulate import Network
from training.fit.batches import Text


@torch.no_grad()
def moment_of(network: Network, pairs: Iterable[tuple[Text, Sample]]) -> Tensor:
    """[hidden, hidden] mean of x x^T over the states from which it drafts along texts."""
    size = network.config.hidden_size
    total, count, product = torch.zeros(size, size, dtype=torch.float64), 0, network.head_product

    def recorded(hidden: Tensor) -> Tensor:
        nonlocal total, count
        rows = hidden.reshape(-1, size).double()
        total, count = total + rows.T @ rows, count + len(rows)
        return product(hidden)

    network.head_product = recorded
    try:
        for text, sample in pairs:
            draft_text(network, text, sample, network.config.depth)
    finally:
        network.head_product = product
    return (total / max(count, 1)).float()


def main(
    folders: Annotated[list[Path], typer.Argument(help="Drafter folders.")],
    held_out: Annotated[str, typer.Option(help="Texts to draft along.")] = "held_out",
    texts: Annotated[int, typer.Option(min=2, help="Of each temperature, at most.")] = 40,
) -> None:
    """Write sketch.safetensors beside the weights."""
    settings, console = load(), Console()
    checkpoint = resolve_checkpoint(settings)
    final = read_config(checkpoint).layers
    for folder in folders:
        network = load_network(folder, checkpoint).eval()
        layers = network.config.feature_layers
        pairs = [p for t in (0.0, 1.0) for p in read_pairs(settings, held_out, layers, final, t, texts)]
        save_moment(folder, moment_of(network, track(pairs, str(folder), console=console, transient=True)))
        console.print(f"wrote {folder / SKETCH}")


if __name__ == "__main__":
    typer.run(main)
