"""Training learns what can be learnt, resumes exactly, and starts block drafters from the target's own layers."""

from __future__ import annotations

import pytest
import torch

from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.drafters.weights import build_network, target_parts
from tests.support.checkpoints import save_tiny
from tests.training.drafting import (
    BLOCKS,
    HIDDEN,
    KINDS,
    feature_layers,
    toy_config,
    toy_network,
    toy_target,
    toy_texts,
)
from training.evaluate.simulate import Acceptance, draft_everywhere
from training.fit.batches import collate, epochs
from training.fit.objective import Tally
from training.fit.recipe import Recipe
from training.fit.trainer import Trainer
from training.fit.warm_start import copy_target_layers


def recipe(kind, steps=120, **changes):
    values = {
        "kind": kind,
        "depth": 3,
        "feature_layers": feature_layers(kind),
        "stages": [{"share": 0.5, "depth": 1}, {"share": 0.5, "depth": 3, "weighting": "dpace"}],
        "steps": steps,
        "tokens_per_step": 120,
        "learning_rate": 3e-3,
        "warm_up": 10,
    }
    return Recipe(**(values | changes))


def mean_length(network, texts):
    total = Acceptance(3)
    for text in texts:
        batch = collate([text], HIDDEN, "cpu")
        total.walk(text.ids, draft_everywhere(network, batch, 3)[0])
    return total.mean_length


@pytest.mark.parametrize("kind", KINDS)
def test_every_drafter_learns_a_text_whose_tokens_follow_from_each_other(kind, tmp_path):
    torch.manual_seed(0)
    network = build_network(
        toy_config(kind, depth=3), toy_target(), torch.arange(32) + 4, torch.ones(1 if kind == "mtp" else 3)
    )
    held_out = toy_texts(10, kind, seed=9)
    before = mean_length(network, held_out)
    Trainer(network, recipe(kind), toy_texts(40, kind), "cpu").run(tmp_path)
    after = mean_length(network, held_out)
    assert before < 1.5
    assert after > (2.0 if kind in ("dflash", "dflare") else 2.6), after  # these two do not see their own drafts


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    def trainer():
        return Trainer(toy_network("dfly", depth=3), recipe("dfly", steps=30), toy_texts(12), "cpu")

    whole = trainer()
    whole.run(tmp_path / "whole")
    first = trainer()
    batches = first._batches()
    for _ in range(13):
        first._step(next(batches), first.recipe.stage_at(first.progress.step / 30), first.progress.step / 30, Tally())
        first.progress.step += 1
    first.save(tmp_path / "cut")
    second = trainer()
    assert second.resume(tmp_path / "cut")
    assert second.progress.step == 13
    second.run(tmp_path / "cut")
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, second.network.state_dict()[name]), name


def test_a_checkpoint_of_another_recipe_is_refused_by_what_changed(tmp_path):
    Trainer(toy_network("mtp", depth=3), recipe("mtp", steps=3), toy_texts(4, "mtp"), "cpu").run(tmp_path)
    other = Trainer(toy_network("mtp", depth=3), recipe("mtp", steps=5), toy_texts(4, "mtp"), "cpu")
    with pytest.raises(ValueError, match="steps was 3, now 5"):
        other.resume(tmp_path)


def test_epochs_see_every_text_once_within_the_bound_and_skip_where_a_run_stopped():
    texts = toy_texts(20)
    endless = epochs(texts, 100, seed=1)
    taken = [next(endless) for _ in range(40)]
    seen = [id(t) for batch in taken for t in batch]
    assert sorted(seen[:20]) == sorted(id(t) for t in texts)
    assert all(max(len(t.ids) for t in b) * len(b) <= 100 for b in taken)
    resumed = epochs(texts, 100, seed=1, skip=23)
    assert [[id(t) for t in next(resumed)] for _ in range(10)] == [[id(t) for t in b] for b in taken[23:33]]


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_copied_layer_gives_context_rows_the_target_s_own_keys_and_values(kind, tmp_path):
    """With the residual stream below the copied layer captured; against transformers' attention projections."""
    from transformers import AutoModelForCausalLM

    folder = save_tiny("llama", tmp_path)
    shape, parts = read_config(folder), target_parts(folder)
    config = toy_config(
        kind,
        layers=1,
        feature_layers=(0, 1),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        norm_epsilon=shape.norm_epsilon,
        qk_norm=False,
        vocabulary_size=shape.vocabulary_size,
        max_position=64,
    )
    network = build_network(config, parts, torch.arange(config.draft_vocabulary_size), torch.tensor([0.5, 2.0]))
    copy_target_layers(network, (2,), load_weights(folder))

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(10, 22)[None]
    with torch.no_grad():
        output = model(ids, output_hidden_states=True, use_cache=True)
        below = output.hidden_states[2]  # what layer 2 reads: the stream after layer 1
        features = torch.cat((torch.randn_like(below), below), -1)
        context = network.context(features, torch.arange(12)[None])[0]
    cache = output.past_key_values.layers[2]
    # not to the bit: the other captured layer still has a weight of exp(-6) in a mix
    assert torch.allclose(context.keys[0], cache.keys[0].transpose(0, 1), atol=2e-2)
    assert torch.allclose(context.values[0], cache.values[0].transpose(0, 1), atol=2e-2)
