"""A sketch of the head finds what the head would choose, and is asked for few candidates only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.drafters import openvino_session as session_module
from python_backend.drafters.drafting import walk
from python_backend.drafters.openvino_session import openvino_session
from python_backend.drafters.pick import pick_for
from python_backend.drafters.session import Append, Asked
from python_backend.drafters.sketch import Sketch, load_sketch, save_moment, sketch_of
from tests.training.drafting import VOCABULARY, toy_network

SKETCHED = ("mtp", "eagle3", "dfly")  # a Markov term needs all logits, and a block without a head reads it once


def states(rank: int, count: int = 4000, hidden: int = 24, noise: float = 0.0) -> torch.Tensor:
    """Random rows that take few of their directions."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, rank, generator=generator) @ torch.randn(rank, hidden, generator=generator)
    return rows + noise * torch.randn(count, hidden, generator=generator)


def test_where_states_take_few_directions_a_sketch_gives_their_logits() -> None:
    head, rows = torch.randn(300, 24, generator=torch.Generator().manual_seed(1)), states(6)
    sketch = sketch_of(head, rows.T @ rows / len(rows), rank=6)
    assert sketch is not None
    torch.testing.assert_close(rows @ sketch.down.T @ sketch.up.T, rows @ head.T, atol=1e-2, rtol=1e-3)


def test_it_is_nearer_to_the_logits_than_one_that_knows_no_states() -> None:
    head, rows = torch.randn(300, 24, generator=torch.Generator().manual_seed(1)), states(8, noise=0.3)

    def error(moment: torch.Tensor) -> float:
        sketch = sketch_of(head, moment, rank=8)
        assert sketch is not None
        return float((rows @ sketch.down.T @ sketch.up.T - rows @ head.T).square().mean())

    assert error(rows.T @ rows / len(rows)) < error(torch.eye(24)) / 4


def test_a_head_that_is_as_small_needs_none() -> None:
    assert sketch_of(torch.randn(300, 24), torch.eye(24), rank=13) is None


def test_it_comes_with_the_folder(tmp_path: Path) -> None:
    head, rows = torch.randn(900, 400), states(20, hidden=400, noise=0.1)
    assert load_sketch(tmp_path, head) is None
    save_moment(tmp_path, 1e4 * rows.T @ rows)  # beyond float16, if it were stored as it is
    sketch = load_sketch(tmp_path, head)
    assert sketch is not None
    assert sketch.up.shape == (900, 192)
    logits, about = rows @ head.T, rows @ sketch.down.T @ sketch.up.T
    assert (about.argmax(-1) == logits.argmax(-1)).float().mean() > 0.8


def drafts(kind: str, sketch: Any, temperature: float, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of two sequences, in float32; the sketch may look at 8 tokens, and be asked for half as many."""
    monkeypatch.setattr(session_module, "LOOKED_AT", 8)
    network = toy_network(kind).eval()
    session = openvino_session(network, 2, 32, eight_bit=False, sketch=sketch and sketch(network))
    random = np.random.default_rng(3)
    features = random.normal(size=(9, network.config.feature_size)).astype(np.float32)
    following = random.integers(0, VOCABULARY, 9)
    new = Append(np.arange(2), np.zeros(2, np.int32), np.array([5, 4]), features, following)
    heat, none = np.full(2, temperature, np.float32), np.zeros(2, np.int32)
    pick = pick_for(heat, none, none.astype(np.float32), np.arange(2).astype(np.uint64), new.end, VOCABULARY)
    candidates = 4 if temperature == 0 else pick.candidates
    started = session.start(new, Asked(np.arange(2), following[[4, 8]], network.config.depth, candidates))
    tokens: list[list[int]] = walk(started, network.config.depth, pick).tokens.tolist()
    return tokens


def whole(network: Any) -> Sketch:
    """Leaves nothing out."""
    return Sketch(torch.eye(network.config.hidden_size), network.head)


def blind(network: Any) -> Sketch:
    """Finds the tokens that are the least likely."""
    return Sketch(torch.eye(network.config.hidden_size), -network.head)


@pytest.mark.parametrize("kind", SKETCHED)
def test_with_one_that_leaves_nothing_out_drafts_are_the_heads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drafts(kind, whole, 0.0, monkeypatch) == drafts(kind, None, 0.0, monkeypatch)


@pytest.mark.parametrize("kind", SKETCHED)
def test_it_decides_where_to_look_for_the_likeliest_and_leaves_races_to_the_head(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drafts(kind, blind, 0.0, monkeypatch) != drafts(kind, None, 0.0, monkeypatch)
    assert drafts(kind, blind, 1.0, monkeypatch) == drafts(kind, None, 1.0, monkeypatch)
