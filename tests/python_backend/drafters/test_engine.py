"""A served drafter says what whole-text passes say, however its context came, and refuses what breaks the contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.checkpoints.checkpoint import CheckpointError, weights_sha256
from python_backend.drafters import weights
from python_backend.drafters.engine import NetworkDrafter
from python_backend.protocol import NO_TOKEN, Context, DrafterStep, ProtocolError, Release
from tests.support.checkpoints import save_tiny
from tests.training.drafting import toy_config
from training.evaluate.simulate import draft_everywhere
from training.fit.batches import Batch

ENGINES = ("openvino", "torch")
KINDS = ("mtp", "eagle3", "dfly", "dflash", "dflare", "dspark")
DEPTH, LENGTH, SLOTS = 4, 40, 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def folders(checkpoint, tmp_path_factory):
    """A random drafter of every kind over the tiny target."""
    parts = weights.target_parts(checkpoint)
    made = {}
    for kind in KINDS:
        config = toy_config(
            kind,
            hidden_size=48,
            intermediate_size=64,
            heads=6,
            kv_heads=2,
            vocabulary_size=300,
            draft_vocabulary_size=200,
            target_sha256=weights_sha256(checkpoint),
        )
        torch.manual_seed(3)
        network = weights.build_network(
            config, parts, torch.arange(200) * 3 // 2, torch.ones(len(config.feature_layers))
        )
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
        made[kind] = tmp_path_factory.mktemp(kind)
        weights.save(network, made[kind])
    return made


@pytest.fixture(scope="module")
def made(folders, checkpoint):
    """Drafters, compiled once: a test gets one whose slots are empty."""
    drafters = {}

    def of(kind, engine="openvino", eight_bit=False):
        key = kind, engine, eight_bit
        if key not in drafters:
            folder = folders[kind]
            drafters[key] = NetworkDrafter(
                kind, folder, checkpoint, SLOTS, LENGTH + DEPTH, eight_bit=eight_bit, engine=engine
            )
        drafters[key].release(np.arange(SLOTS))
        return drafters[key]

    return of


@pytest.fixture(scope="module")
def networks(folders, checkpoint):
    return {kind: weights.load(folder, checkpoint).eval() for kind, folder in folders.items()}


class Text:
    """Random tokens with random states."""

    def __init__(self, seed, width):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(0, 300, LENGTH)
        self.features = rng.normal(size=(LENGTH, width)).astype(np.float32)


def step_of(texts, slots, past, count, depth=DEPTH, **columns):
    """Append `count` rows of each text to its slot; the token after the last is the anchor."""
    contexts = [
        Context(slot, p, text.ids[p + 1 : p + c + 1].tolist(), text.features[p : p + c], int(text.ids[p + c]))
        for slot, text, p, c in zip(slots, texts, past, count, strict=True)
    ]
    return DrafterStep.of(contexts, depth, **columns)


def whole(network, text, anchor):
    """Drafts after `anchor` by a pass over the whole text, as training and simulation make it."""
    batch = Batch(
        features=torch.from_numpy(text.features[None, : LENGTH - 1]),
        final=torch.zeros(1, LENGTH - 1, 1),
        ids=torch.from_numpy(text.ids[None]),
        rows=torch.tensor([LENGTH - 1]),
        start=torch.tensor([anchor]),
    )
    drafts = draft_everywhere(network, batch, DEPTH)[0]
    return drafts.tokens[0], drafts.probability[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_context_in_any_pieces_with_rollbacks_gives_the_drafts_of_the_whole(made, networks, engine, kind, data):
    drafter = made(kind, engine)
    texts = [Text(seed, drafter.config.feature_size) for seed in range(SLOTS)]
    stored = [0] * SLOTS
    for _ in range(data.draw(st.integers(1, 4))):
        slots = data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]
        past = [data.draw(st.integers(max(0, stored[s] - 3), stored[s])) for s in slots]
        count = [data.draw(st.integers(1, 6 if p else 22)) for p in past]
        count = [min(c, LENGTH - DEPTH - 2 - p) for c, p in zip(count, past, strict=True)]
        if min(count) < 1:
            return
        result = drafter.step(step_of([texts[s] for s in slots], slots, past, count))
        for i, slot in enumerate(slots):
            stored[slot] = past[i] + count[i]
            tokens, probability = whole(networks[kind], texts[slot], stored[slot])
            assert result.draft_ids[i].tolist() == tokens.tolist()
            assert np.allclose(result.confidence[i], probability, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bits_change_few_drafts(made, kind):
    exact, rounded = (made(kind, eight_bit=e) for e in (False, True))
    assert rounded.describe().dtype == "int8"
    texts = [Text(seed, exact.config.feature_size) for seed in range(SLOTS)]
    agreed = []
    for count in range(1, 30):
        step = step_of(texts, range(SLOTS), [0] * SLOTS, [count] * SLOTS)
        agreed.append(exact.step(step).draft_ids[:, 0] == rounded.step(step).draft_ids[:, 0])
    assert np.mean(agreed) > 0.8  # random weights: choices are closer than a trained drafter's


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "dfly", "dspark"])
def test_a_chain_ends_where_none_is_likely_enough_to_be_accepted(folders, checkpoint, made, kind):
    full = made(kind)
    texts = [Text(seed, full.config.feature_size) for seed in range(SLOTS)]
    step = step_of(texts, range(SLOTS), [0] * SLOTS, [9] * SLOTS)
    whole = full.step(step)
    reached = whole.confidence.cumprod(1).max(0)  # the likeliest chain's, by depth
    least = float(reached[1] + reached[0]) / 2
    drafter = NetworkDrafter(
        kind, folders[kind], checkpoint, SLOTS, LENGTH + DEPTH, eight_bit=False, least_confidence=least
    )
    ended = drafter.step(step)
    assert np.array_equal(ended.draft_ids[:, :2], whole.draft_ids[:, :2])  # the second was still worth a look
    assert (ended.draft_ids[:, 2:] == NO_TOKEN).all()
    assert (ended.confidence[:, 2:] == 0).all()


@pytest.mark.parametrize("kind", ["mtp", "dfly"])
@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_at_a_temperature_race_with_the_noise_of_their_own_request(made, engine, kind):
    drafter = made(kind, engine)
    texts = [Text(seed, drafter.config.feature_size) for seed in range(3)]
    sampling = {
        "temperature": np.array([0, 1, 1], dtype=np.float32),
        "seed": np.array([5, 6, 7], dtype=np.uint64),
    }
    together = drafter.step(step_of(texts, [0, 1, 2], [0] * 3, [9] * 3, **sampling))
    cold = drafter.step(step_of(texts, [0, 1, 2], [0] * 3, [9] * 3))
    assert together.draft_ids[0].tolist() == cold.draft_ids[0].tolist()
    assert (together.draft_ids[1:] != cold.draft_ids[1:]).any()
    for i in (1, 2):
        alone = drafter.step(step_of(texts[i : i + 1], [4], [0], [9], **{n: v[i : i + 1] for n, v in sampling.items()}))
        assert alone.draft_ids[0].tolist() == together.draft_ids[i].tolist()


@pytest.mark.parametrize("kind", ["mtp", "dfly"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sequence_without_an_anchor_is_appended_and_not_drafted_for(made, networks, engine, kind):
    drafter = made(kind, engine)
    text = Text(0, drafter.config.feature_size)
    silent = drafter.step(step_of([text], [0], [0], [5], anchor=np.array([-1], dtype=np.int32)))
    assert (silent.draft_ids == -1).all()
    assert (silent.confidence == 0).all()
    drafted = drafter.step(step_of([text], [0], [5], [4])).draft_ids[0]
    assert drafted.tolist() == whole(networks[kind], text, 9)[0].tolist()


def test_more_drafts_than_it_was_trained_for_are_left_empty(made):
    drafter = made("mtp")
    result = drafter.step(step_of([Text(0, 48)], [0], [0], [5], depth=6))
    assert result.draft_ids.shape == (1, 6)
    assert (result.draft_ids[0, DEPTH:] == -1).all()
    assert (result.draft_ids[0, :DEPTH] >= 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot": np.array([7], np.int32)}, "'slot' is 7 for sequence 0, limit 0 to 4"),
        ({"past_length": np.array([3], np.int32)}, "'past_length' is 3 for slot 0, limit 0"),
        ({"features": np.zeros((5, 8), np.float32)}, "'features' has 8 columns, expected 144"),
        ({"anchor": np.array([300], np.int32)}, "'anchor' is 300 in row 0, limit -1 to 299"),
        ({"token_ids": np.full(5, -2, np.int32)}, "'token_ids' is -2 in row 0, limit 0 to 299"),
    ],
)
def test_a_broken_contract_is_named_and_changes_nothing(made, changes, message):
    drafter = made("dfly")
    with pytest.raises(ProtocolError, match=message):
        drafter.step(step_of([Text(0, drafter.config.feature_size)], [0], [0], [5], **changes))
    assert drafter.context.stored.tolist() == [0] * SLOTS


def test_release_empties_a_slot(made):
    drafter = made("dfly")
    drafter.step(step_of([Text(0, drafter.config.feature_size)], [2], [0], [5]))
    drafter.release(Release(slot=np.array([2], dtype=np.int32)).slot)
    assert drafter.context.stored[2] == 0


def test_another_targets_drafter_is_refused_by_both_checksums(folders, tmp_path):
    other = save_tiny("qwen2", tmp_path)
    with pytest.raises(CheckpointError, match=f"has {weights_sha256(other)[:12]}"):
        NetworkDrafter("mtp", folders["mtp"], other, SLOTS, LENGTH)
