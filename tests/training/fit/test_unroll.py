"""Drafts, their teacher and what they may look at are the right rows; one row off fails here."""

from __future__ import annotations

import pytest
import torch

from tests.training.drafting import BLOCKS, HIDDEN, RECURRENT, toy_network, toy_target, toy_texts
from training.fit.attention import attend
from training.fit.batches import collate
from training.fit.unroll import unroll_block, unroll_recurrent

DEPTH = 3


def unroll(network, batch, anchors=100):
    if network.config.is_block:
        return unroll_block(network, batch, DEPTH, anchors, torch.Generator().manual_seed(0))
    return unroll_recurrent(network, batch, DEPTH, off_path=0.25)


def toy_batch(network, count=3):
    return collate(toy_texts(count, network.config.kind), HIDDEN, "cpu")


@pytest.mark.parametrize("kind", [*BLOCKS, *RECURRENT])
def test_the_teacher_of_a_draft_is_the_row_that_predicts_it(kind):
    network = toy_network(kind)
    batch = toy_batch(network)
    chains = unroll(network, batch)
    says = (batch.final.flatten(0, 1) @ toy_target().head.T).argmax(-1)
    assert (says[chains.row] == chains.token)[chains.valid].all()


@pytest.mark.parametrize("kind", [*BLOCKS, *RECURRENT])
def test_every_place_of_the_response_is_drafted_from_once_and_no_other(kind):
    network = toy_network(kind)
    batch = toy_batch(network)
    chains = unroll(network, batch)
    width = batch.features.shape[1]
    drafted = {(int(r) // width, int(r) % width + 1) for r in chains.row[:, 0]}  # (sequence, index of draft 1)
    response = {(i, t) for i in range(3) for t in range(int(batch.start[i]) + 1, int(batch.rows[i]) + 1)}
    assert len(chains.row) == len(drafted)
    assert drafted == response


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_sees_the_rows_before_its_anchor_and_no_later_ones(kind):
    network = toy_network(kind)
    batch = toy_batch(network, count=1)
    anchor = int(batch.start[0]) + 4

    def hidden(changed_row):
        features = batch.features.clone()
        if changed_row is not None:
            features[0, changed_row] += 10
        contexts = network.context(features, batch.positions)
        visible = torch.arange(features.shape[1]) < anchor
        at = torch.tensor([[anchor]])
        see = lambda i, query, own: attend(query, contexts[i], visible[None, None], own)  # noqa: E731
        return network.block(batch.ids[:, anchor][None], at, DEPTH, see)

    whole = unroll(network, batch)
    mine = [i for i in range(len(whole.row)) if int(whole.row[i, 0]) == anchor]
    corrected = network.correct(hidden(None), whole.previous[mine][None])
    assert torch.allclose(whole.hidden[mine][None], corrected, atol=1e-5)
    for row in range(batch.features.shape[1]):
        same = torch.allclose(hidden(row), hidden(None), atol=1e-6)
        assert same == (row >= anchor), row


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_chain_sees_the_rows_up_to_its_first_and_no_later_ones(kind):
    network = toy_network(kind)
    batch = toy_batch(network, count=1)
    row = int(batch.start[0]) + 3

    def hidden(changed_row):
        features = batch.features.clone()
        if changed_row is not None:
            features[0, changed_row] += 10
        chains = unroll(network, batch._replace(features=features))
        return chains.hidden[[int(r) == row + 1 for r in chains.row[:, 0]]]

    assert len(hidden(None)) == 1
    for changed in range(batch.features.shape[1]):
        same = torch.allclose(hidden(changed), hidden(None), atol=1e-6)
        assert same == (changed > row), changed


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_chain_is_fed_the_anchor_then_its_own_drafts(kind):
    network = toy_network(kind)
    batch = toy_batch(network, count=1)
    chains = unroll(network, batch)
    assert (chains.previous[:, 0] == batch.ids[0, chains.row[:, 0]]).all()
    drafted = network.draft_ids[network.logits(chains.hidden[:, 0], chains.previous[:, 0]).argmax(-1)]
    assert (chains.previous[:, 1] == drafted)[chains.valid[:, 0]].all()
    off = drafted != chains.token[:, 0]
    assert off.any()
    assert (chains.scale[:, 1] == torch.where(off, 0.25, 1.0))[chains.valid[:, 0]].all()
