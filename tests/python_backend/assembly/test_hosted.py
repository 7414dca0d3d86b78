"""Drafters in the target's process draft what drafters behind the wire draft, and no feature travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.drafters.engine import NetworkDrafter
from python_backend.protocol import Array, Context, DrafterStep, Part, ProtocolError, TargetResult, row_starts
from tests.support.checkpoints import load_engine, make_step
from tests.support.drafters import save_drafter

DEPTH, SLOTS, LENGTH = 3, 3, 120


@given(data=st.data())
def test_the_store_gives_committed_rows_and_forgets_what_was_read_or_rolled_back(data: st.DataObject) -> None:
    store, slot = FeatureStore(1), np.array([0])
    held: list[float] = []  # of rows begin..begin + len
    begin, number = 0, 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        if held and data.draw(st.booleans()):
            skipped = data.draw(st.integers(0, len(held) - 1))
            count = data.draw(st.integers(0, len(held) - skipped))
            taken = torch.cat(store.take(0, begin + skipped, count))
            assert taken[:, 0].tolist() == held[skipped : skipped + count]
            begin, held = begin + skipped, held[skipped:]
        else:
            past = begin + data.draw(st.integers(0, len(held)))
            rows = [number := number + 1 for _ in range(data.draw(st.integers(1, 6)))]
            store.put(slot, np.array([past]), np.array([len(rows)]), torch.tensor(rows)[:, None])
            held = held[: past - begin] + rows


def test_rows_that_are_not_there_are_refused() -> None:
    store = FeatureStore(2)
    store.put(np.array([1]), np.array([4]), np.array([3]), torch.zeros(3, 1))
    with pytest.raises(ProtocolError, match=r"rows 4 to 7 of slot 1, the target holds those of 3 rows from 4 on"):
        store.take(1, 4, 4)
    with pytest.raises(ProtocolError, match=r"rows 3 to 4 of slot 1"):
        store.take(1, 3, 2)
    store.release(np.array([1]))
    with pytest.raises(ProtocolError, match=r"rows 4 to 4 of slot 1, the target holds those of 0 rows"):
        store.take(1, 4, 1)


def test_a_new_sequence_in_a_slot_forgets_the_old_one() -> None:
    store = FeatureStore(1)
    store.put(np.array([0]), np.array([0]), np.array([5]), torch.zeros(5, 1))
    store.put(np.array([0]), np.array([0]), np.array([2]), torch.ones(2, 1))
    assert torch.cat(store.take(0, 0, 2)).sum() == 2


@pytest.fixture(scope="module", params=["mtp", "dfly"])
def drafter_folder(request: pytest.FixtureRequest, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = (3,) if request.param == "mtp" else (0, 2)
    return save_drafter(request.param, tmp_path_factory.mktemp(request.param), tiny_llama, layers)


def load_drafter(folder: Path, checkpoint: Path) -> NetworkDrafter:
    return NetworkDrafter("drafter", folder, checkpoint, SLOTS, LENGTH, eight_bit=False)


class Decoding:
    """Greedy decoding of two prompts, one in chunks, with drafts; what a coordinator would do."""

    def __init__(self, target: Any, drafter: Any, columns: Array, wire: bool) -> None:
        self.target, self.drafter, self.columns, self.wire = target, drafter, columns, wire
        self.tokens = {2: list(range(10, 60)), 0: [7, 8, 9]}
        self.cached, self.seen = {2: 0, 0: 0}, {2: 0, 0: 0}
        self.features: dict[int, list[Any]] = {2: [], 0: []}
        self.drafts: list[list[list[int]]] = []

    def run(self) -> list[list[list[int]]]:
        self._commit([2], self.target.step(make_step(Part(2, 0, self.tokens[2][:30], sample=False))), [30])
        parts = (Part(2, 30, self.tokens[2][30:]), Part(0, 0, self.tokens[0]))
        self._commit([2, 0], self.target.step(make_step(*parts)), [20, 3])
        for _ in range(6):
            ids = self.draft().tolist()
            self.drafts.append(ids)
            rows = [[self.tokens[s][-1], *drafts] for s, drafts in zip((0, 2), ids, strict=True)]
            step = make_step(*(Part(s, self.cached[s], r, drafts=DEPTH) for s, r in zip((0, 2), rows, strict=True)))
            self._commit([0, 2], self.target.step(step), [1, 1], rows)
        return self.drafts

    def draft(self) -> Array:
        slots = (0, 2)
        context = [self.tokens[s][self.seen[s] + 1 : self.cached[s] + 1] for s in slots]
        rows = {s: np.concatenate(self.features[s])[:, self.columns] if self.wire else None for s in slots}
        contexts = [
            Context(s, self.seen[s], tokens, rows[s], self.tokens[s][-1])
            for s, tokens in zip(slots, context, strict=True)
        ]
        step = DrafterStep.of(contexts, DEPTH)
        for s in slots:
            self.seen[s], self.features[s] = self.cached[s], []
        ids: Array = self.drafter.step(step).draft_ids
        return np.maximum(ids, 0)

    def _commit(
        self, slots: list[int], result: TargetResult, rows: list[int], drafted: list[list[int]] | None = None
    ) -> None:
        assert self.wire or result.features.shape == (0, 0)
        pieces = np.split(result.features, row_starts(result.feature_count)[1:-1])
        for i, s in enumerate(slots):
            accepted = int(result.accepted[i])
            self.cached[s] += rows[i] + accepted
            if drafted:
                self.tokens[s] += drafted[i][1 : 1 + accepted]
            if result.next_token[i] >= 0:
                self.tokens[s].append(int(result.next_token[i]))
            if self.wire:
                self.features[s].append(pieces[i])


def test_hosted_drafters_draft_what_drafters_behind_the_wire_draft(drafter_folder: Path, tiny_llama: Path) -> None:
    layers = (0, 2, 3)
    reads = load_drafter(drafter_folder, tiny_llama).config.feature_layers
    columns = np.concatenate([np.arange(48) + 48 * layers.index(layer) for layer in reads])

    target = load_engine(tiny_llama, SLOTS, LENGTH, feature_layers=layers)
    over_the_wire = Decoding(target, load_drafter(drafter_folder, tiny_llama), columns, wire=True)

    store = FeatureStore(SLOTS)
    hosting = HostingTarget(load_engine(tiny_llama, SLOTS, LENGTH, feature_layers=layers), store)
    drafter = HostedDrafter(load_drafter(drafter_folder, tiny_llama), store, columns)
    on_the_device = Decoding(hosting, drafter, columns, wire=False)

    assert on_the_device.run() == over_the_wire.run()
    assert on_the_device.tokens == over_the_wire.tokens
