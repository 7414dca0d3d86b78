"""What a head reads while a drafter drafts, and nothing of the drafter has changed afterwards."""

from __future__ import annotations

import torch

from tests.training.drafting import toy_network, toy_texts
from training.corpus.shards import Sample
from training.fit.sketch import moment_of


def test_a_moment_is_that_of_the_states_from_which_drafts_are_made() -> None:
    network, product = toy_network("mtp").eval(), None
    texts = toy_texts(3, "mtp")
    pairs = [(t, Sample(t.ids, t.response_start, "chat", 0.0, 0, torch.zeros(0))) for t in texts]
    seen: list[torch.Tensor] = []
    product, network.head_product = network.head_product, lambda hidden: (seen.append(hidden), product(hidden))[1]
    recording = network.head_product
    moment = moment_of(network, pairs)
    assert network.head_product is recording
    rows = torch.cat([hidden.reshape(-1, network.config.hidden_size) for hidden in seen])
    anchors = sum(len(t.ids) - 1 - t.response_start for t in texts)
    assert len(rows) == anchors * network.config.depth
    torch.testing.assert_close(moment, rows.T @ rows / len(rows), atol=1e-5, rtol=1e-5)
