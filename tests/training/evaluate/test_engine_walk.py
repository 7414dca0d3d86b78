"""What the simulation says is what the served engine does, call by call, at temperature 0 and above."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters import weights
from python_backend.drafters.engine import NetworkDrafter
from python_backend.drafters.prompt_lookup import PromptLookup
from tests.support.checkpoints import save_tiny
from tests.training.drafting import KINDS, toy_config
from training.corpus.shards import Sample
from training.evaluate.acceptance import draft_text
from training.evaluate.engine_walk import walk_engine
from training.evaluate.simulate import Acceptance
from training.fit.batches import Text, read_texts

DEPTH, WIDTH = 4, 48


def texts(layers, temperature):
    """Texts that a random drafter guesses now and then: of four tokens."""
    rng = np.random.default_rng(1)
    samples = [
        Sample(rng.integers(0, 4, 40), 6, "chat", temperature, i, torch.from_numpy(rng.normal(size=(39, 4 * WIDTH))))
        for i in range(6)
    ]
    return list(zip(read_texts(samples, (0, 1, 2, 3), layers, 3), samples, strict=True))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_and_served_acceptance_are_the_same(checkpoint, tmp_path, kind, temperature):
    config = toy_config(
        kind,
        hidden_size=WIDTH,
        heads=6,
        kv_heads=2,
        vocabulary_size=300,
        draft_vocabulary_size=4,
        target_sha256=weights_sha256(checkpoint),
    )
    torch.manual_seed(0)
    layers = len(config.feature_layers)
    network = weights.build_network(config, weights.target_parts(checkpoint), torch.arange(4), torch.ones(layers))
    weights.save(network, tmp_path)
    network = weights.load(tmp_path, checkpoint)
    engine = NetworkDrafter(kind, tmp_path, checkpoint, 1, 64, eight_bit=False)
    served, simulated = Acceptance(DEPTH), Acceptance(DEPTH)
    for text, sample in texts(config.feature_layers, temperature):
        served.add(walk_engine(engine, text, sample, DEPTH))
        simulated.walk(text.ids, draft_text(network, text, sample, DEPTH))
    assert served.accepted_at.tolist() == simulated.accepted_at.tolist()
    assert (served.emitted, served.steps) == (simulated.emitted, simulated.steps)
    assert simulated.accepted_at[0] > 0


def test_mean_length_pools_tokens_over_steps():
    acceptance = Acceptance(3)
    ahead = np.array([5, 6, 7, 8, 9])
    assert acceptance.step(np.array([5, 6, 1]), ahead) == 3  # two drafts and the target's own
    assert acceptance.step(np.array([9, 1, 1]), ahead[3:]) == 1  # refused at once
    assert acceptance.step(np.array([9, 1, 1]), ahead[4:]) == 1  # the text ends with an accepted draft
    assert acceptance.mean_length == pytest.approx(5 / 3)
    assert acceptance.cumulative.tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert acceptance.conditional.tolist() == pytest.approx([2 / 3, 1 / 2, 0])


def test_prompt_lookup_walks_the_same_way():
    ids = np.array([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 9])
    sample = Sample(ids, 5, "code", 0.0, 0, torch.zeros(12, 2))
    result = walk_engine(PromptLookup("p", 1, 64, 4, 1, 3), Text(ids, 5, torch.zeros(12, 2)), sample, 4)
    assert (result.emitted, result.steps) == (7, 2)  # 3 4 1 2 and 3, then 4, and 9 where it says 1
